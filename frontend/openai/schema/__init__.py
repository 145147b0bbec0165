"""Bodies of requests and responses: their fields, ranges and defaults."""
