"""The talk with one engine: its socket, its session, and the sequences that are open on it."""
