"""Reading a GGUF file without torch: its tensors, and the small files that its metadata stand for."""
