"""What helps to type the commands?"""
