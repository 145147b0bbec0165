"""The persistent batch: the state of every row, and the step inputs made from it."""
