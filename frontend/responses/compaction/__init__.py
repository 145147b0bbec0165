"""What may stand for a long conversation: a sealed summary of it, and the latest of what its user said."""
