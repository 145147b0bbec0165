"""Bodies of the Messages API, as its clients write and read them."""
