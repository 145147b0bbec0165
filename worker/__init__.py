"""worker: one process per device; holds weights and KV cache, runs the steps the engine schedules."""
