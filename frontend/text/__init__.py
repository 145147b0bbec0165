"""Text to token ids and back, using the files of a checkpoint."""
