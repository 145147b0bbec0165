"""Who waits, in which order, and who is turned away?"""
