"""The engine without I/O: which requests are in flight, which step comes next, who hears what."""
