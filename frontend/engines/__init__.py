"""The engine-cores that a frontend talks to, as one pool, and the way of a stream through them."""
