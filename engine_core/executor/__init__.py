"""How a step reaches the workers: in process, over sockets to worker processes, or simulated."""
