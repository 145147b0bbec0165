"""Which tokens are drafted, and how many of each row?"""
