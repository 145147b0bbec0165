"""Chat messages to a prompt, using a checkpoint's template."""
