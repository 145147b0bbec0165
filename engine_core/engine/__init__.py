"""The engine without I/O: which requests are in flight, which step is next, what is each frontend told?"""
