"""One client's connection: what uvicorn and asyncio lack for accepting, request heads and bodies."""
