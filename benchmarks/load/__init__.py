"""How much load does a server bear, and what does it promise under it? `python -m benchmarks.load --help`"""
