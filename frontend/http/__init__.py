"""HTTP handling that every API needs: limits, keys, bodies, errors, request logs."""
