"""Workers that outlive their engine-core: who they are, who may take them, and what their KV cache holds."""
