"""One client's connection: what uvicorn and asyncio leave open about accepting, heads and bodies."""
