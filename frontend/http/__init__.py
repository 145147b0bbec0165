"""HTTP as any API of ours needs it: limits, keys, bodies, errors, the log line of a request."""
