"""tokenizer.json from a SentencePiece model, for checkpoints that come with tokenizer.model alone."""
