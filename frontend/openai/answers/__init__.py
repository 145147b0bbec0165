"""Outputs of the engines as the JSON that clients get, whole or in chunks."""
