"""Weights of codes of 4 and 8 bits in a GPU's memory: how they lie there, and what reads them."""
