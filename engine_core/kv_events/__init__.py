"""Events of the KV cache for outside routers: which prefixes this engine holds, published on a ZMQ socket."""
