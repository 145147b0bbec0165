"""The contents of a checkpoint directory, read without torch: config, weight files, files for text."""
