"""What do faults of processes cost the streams that are open? One scenario per row of docs/reliability.md."""
