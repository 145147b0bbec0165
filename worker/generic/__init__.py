"""Decoders of the transformers library on our kernels and KV cache."""
