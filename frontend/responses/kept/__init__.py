"""Responses that are kept: what is written of them, how they go on, and those of the background."""
