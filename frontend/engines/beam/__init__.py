"""Beam search, run on the engines step by step."""
