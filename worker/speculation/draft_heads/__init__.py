"""Heads as drafters: what they read of each step, and what they draft from it."""
