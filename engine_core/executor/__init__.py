"""How does a step reach the workers? In process, over sockets to worker processes, or simulated."""
