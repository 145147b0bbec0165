"""OpenAI's batch format: a request per line, an answer per line."""
