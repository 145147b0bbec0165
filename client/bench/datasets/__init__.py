"""Which requests does a benchmark send?"""
