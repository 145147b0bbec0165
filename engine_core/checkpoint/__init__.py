"""Reading a checkpoint directory without torch: config, weight files, tokenizer files."""
