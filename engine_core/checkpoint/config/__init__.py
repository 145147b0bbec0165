"""How config.json is read: one reader per family of architectures, one ModelConfig for all."""
