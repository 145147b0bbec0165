"""The engine-cores that a frontend talks to, as one pool, and how a request runs on them."""
