"""Chat messages to a prompt, by a checkpoint's template."""
