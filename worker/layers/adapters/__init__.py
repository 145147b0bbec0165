"""Where adapters (LoRA) change a model: the linear layers that they may name, and their matrices by slot."""
