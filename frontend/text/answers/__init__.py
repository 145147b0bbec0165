"""What in the model's text is content, what is reasoning, and what is a tool call?"""
