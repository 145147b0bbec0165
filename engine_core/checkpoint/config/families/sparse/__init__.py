"""Families whose sizes and choice of experts are their own: config.json and traits, one file per family."""
