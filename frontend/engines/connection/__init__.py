"""The connection to one engine: its socket, its session, and its open sequences."""
