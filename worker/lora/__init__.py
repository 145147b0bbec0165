"""How does an adapter get from its files into a slot beside the steps?"""
