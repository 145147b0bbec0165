"""A model over several ranks: which shard of each layer a rank holds, and how ranks communicate."""
