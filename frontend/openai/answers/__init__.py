"""Turns the engines' outputs into the JSON that clients get, whole or in chunks."""
