"""JSON values held against the types of a request: what is wrong with them, and what no type has."""
