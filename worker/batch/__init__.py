"""What the worker keeps of every row, and what a step needs of it."""
