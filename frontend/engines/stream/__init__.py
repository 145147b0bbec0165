"""What a client's request gets of its sequences: text, logprobs, and the end of each completion."""
