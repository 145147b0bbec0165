"""What a request receives from its sequences: text, logprobs, and the end of each completion."""
