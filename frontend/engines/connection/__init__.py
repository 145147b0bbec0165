"""The connection to one engine: its socket, its session, and the sequences open on it."""
