"""The real engine-core against a cost model of the worker and a clock turned by hand."""
