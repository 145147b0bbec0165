"""The paged KV cache of one rank, and its blocks in host memory."""
