"""Attention backends, one per file."""
