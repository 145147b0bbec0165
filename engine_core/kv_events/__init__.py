"""KV cache events for external routers: which prefixes this engine holds, published on a ZMQ socket."""
