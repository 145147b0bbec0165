"""What a model takes of a worker's memory, found before anything is loaded."""
