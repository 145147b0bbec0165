"""What an operator asks a frontend: is it healthy, how busy is it, what is waiting?"""
