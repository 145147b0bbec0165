"""Bodies and events of the Responses API, and what of it is not served."""
