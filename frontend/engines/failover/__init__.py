"""What becomes of a client's request when its engine is lost? It goes on where there is an engine."""
