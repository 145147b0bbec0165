"""api-frontend: stateless OpenAI-compatible HTTP servers and the offline LLM class; imports no torch."""
