"""How is an engine's KV cache built from its configuration?"""

from __future__ import annotations

from splitserve.engine_core.config import SchedulerConfig, max_steps_in_flight
from splitserve.engine_core.kept.ledger import Ledger
from splitserve.engine_core.kv_cache.costs import KVCosts
from splitserve.engine_core.kv_cache.manager import KVCacheManager
from splitserve.engine_core.kv_cache.offload import make_offload
from splitserve.engine_core.kv_cache.prefix_cache import PrefixCache
from splitserve.engine_core.kv_cache.window import LayerWindows, bound_rows
from splitserve.engine_core.kv_events.recorder import KVEventRecorder


def make_kv_cache_manager(
    config: SchedulerConfig,
    secret: bytes,
    windows: LayerWindows,
    costs: KVCosts,
    kv_events: KVEventRecorder | None,
    ledger: Ledger | None = None,
) -> KVCacheManager:
    """Return an engine's block tables and cache, with nothing in use, and what the ledger says is cached.

    Args:
        config: limits.
        secret: seeds the hashes of prefixes.
        windows: of the model's layers.
        costs: decides between offloading and recomputing.
        kv_events: told what is cached; None if nobody listens.
        ledger: of the workers' KV cache, if they outlive the engine.
    """
    max_chunk = config.max_prefill_tokens or config.max_num_batched_tokens
    num_ahead = max_steps_in_flight(config.num_stages) - 1
    bounds = bound_rows(config.num_blocks, config.block_size, max_chunk, windows, num_ahead)
    held = ledger.open(config.num_blocks, config.block_size) if ledger is not None else None
    if held is not None and config.enable_prefix_caching:
        secret = held.secret
    elif ledger is not None:
        ledger.begin(secret)
        held = None
    offload = make_offload(config, costs, kv_events)
    cache = PrefixCache(config.num_blocks, secret, offload, kv_events, ledger, bounds.num_window_groups)
    if held is not None:
        cache.restore(held.hash_of)
    return KVCacheManager(
        cache, bounds, config.max_num_seqs, enable_prefix_caching=config.enable_prefix_caching
    )
