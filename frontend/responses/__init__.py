"""OpenAI's Responses API, over the plan and the run of a chat."""
