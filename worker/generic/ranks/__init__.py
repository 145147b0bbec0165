"""Decoders of the transformers library over several ranks."""
