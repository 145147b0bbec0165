"""Which tools does the demo model learn to call, and which questions judge it?"""
