"""What do the times mean, and how is that told?"""
