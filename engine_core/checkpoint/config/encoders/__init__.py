"""Encoders: how config.json of each family is read, and how their layers differ."""
