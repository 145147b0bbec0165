"""Beam search over the engines."""
