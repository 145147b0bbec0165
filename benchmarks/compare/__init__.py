"""SplitServe beside other engines on one machine: `python -m benchmarks.compare setup|run|table|plot`.

Parts of this package run with the Python of another engine's virtual environment, so importing it loads the
standard library only; what needs more imports it where it is used.
"""
