"""How is an OpenAI-compatible API asked over HTTP, also for answers that are streamed?"""
