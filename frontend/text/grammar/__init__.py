"""Structured outputs: what a request asks of its output, as a grammar that llguidance reads, checked."""
