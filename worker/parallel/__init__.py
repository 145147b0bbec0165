"""A model over several ranks: which part of each layer a rank holds, and how ranks talk to each other."""
