"""The commands that use a server from outside; no torch, nothing of the processes that serve."""
