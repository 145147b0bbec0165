"""tokenizer.json, made from whatever vocabulary a checkpoint has in its place."""
