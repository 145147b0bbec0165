"""Which server is asked: one at a URL, or one of the command's own?"""
