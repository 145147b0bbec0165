"""How much may one step compute?"""
