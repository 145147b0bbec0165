"""Decode graphs: decode steps that are captured once and replayed."""
