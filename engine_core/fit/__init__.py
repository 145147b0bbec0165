"""What a model will take of the memory, and what fits beside it, said before anything is loaded."""
