"""How does one talk to a model in a terminal, or in a script?"""
