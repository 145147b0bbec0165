"""What config.json says: one reader per family of architectures, one ModelConfig for all."""
