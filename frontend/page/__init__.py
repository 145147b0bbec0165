"""The page at /: what is it made of, and how is it sent?"""
