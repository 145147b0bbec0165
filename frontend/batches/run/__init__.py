"""How is a batch answered, every line once, while clients are served and frontends come and go?"""
