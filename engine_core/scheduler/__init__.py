"""Which tokens are computed in the next step: queues, running columns and the scheduler itself."""
