"""Vectors of texts, and how near they are to each other."""
