"""Files of requests that are answered without a client: OpenAI's files and batches, on a kept store."""
