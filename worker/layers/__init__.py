"""Layers shared by the models, one per file."""
