"""What a SentencePiece model says, and tokenizer.json from it."""
