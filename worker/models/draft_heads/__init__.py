"""Layers that draft from the hidden states of a model, and how they get these."""
