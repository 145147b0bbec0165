"""worker: one process per device; holds the weights and the KV cache and runs the steps the engine plans."""
