"""What becomes of the numbers that a model makes of a prompt: vectors, scores, probabilities."""
