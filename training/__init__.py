"""Makes the demo model: its text, its tokenizer, its weights and its score."""
