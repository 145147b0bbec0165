"""What does a server do right now?"""
