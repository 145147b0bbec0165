"""Which database does a flag name, and how is it asked without keeping the event loop waiting?"""
