"""What every process needs: children, signals, descriptors, logs."""
