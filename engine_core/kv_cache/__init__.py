"""Accounting of paged KV blocks: pool, prefix index and the manager that joins them."""
