"""How is a file of requests answered, every one exactly once?"""
