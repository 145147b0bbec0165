"""Prometheus metrics of a frontend, of the other frontends of its launch, and of the engines."""
