"""How fast does a server, or a model in a script, answer?"""
