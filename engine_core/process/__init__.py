"""What every process of ours needs: children, signals, descriptors, log lines."""
