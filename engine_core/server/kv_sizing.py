"""How many KV blocks the pool and the CPU offload tier get, and the resulting limits for the scheduler."""

from __future__ import annotations

from typing import NamedTuple

from splitserve.engine_core.config import EngineConfig, SchedulerConfig, max_steps_in_flight
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.engine_core.ipc.worker_messages import KVCacheReady, WorkerReady
from splitserve.engine_core.kv_cache.window import LayerWindows, RowBounds, bound_rows
from splitserve.engine_core.settings.adapter_settings import named_adapters
from splitserve.engine_core.settings.scheduling import parse_weights

# A token's slot in the pool is an int32.
MAX_POOL_TOKENS = 2**31 - 1
# A step numbers the blocks of pool and tier together in int32.
MAX_HOST_BLOCKS = 2**30


class KVSize(NamedTuple):
    """Size of the KV pool and of its CPU offload tier.

    Attributes:
        num_blocks: blocks of the pool; 0 for a model without a KV cache, as are the others then.
        num_tokens: tokens that these blocks hold; with window groups those of one sequence.
        num_full_sequences: sequences of max_model_len that fit at once, of which all but one decode; with
            sliding windows each needs only the blocks that it holds at a time.
        num_bytes: memory of the pool on each rank.
        num_host_blocks: blocks of the CPU offload tier.
        num_host_bytes: maximum memory of the tier on each rank.
    """

    num_blocks: int
    num_tokens: int
    num_full_sequences: int
    num_bytes: int
    num_host_blocks: int
    num_host_bytes: int


def model_len(config: EngineConfig, model: ModelInfo) -> int:
    """Return the longest sequence served, in tokens.

    Raises:
        ConfigError: the requested length exceeds the model's.
    """
    if config.max_model_len > model.max_model_len:
        raise ConfigError(
            f"--max-model-len {config.max_model_len} exceeds the model's limit of {model.max_model_len}"
        )
    return config.max_model_len or model.max_model_len


def size_kv_cache(config: EngineConfig, ready: WorkerReady) -> KVSize:
    """Decide the size of the pool and of its CPU offload tier.

    A size given by the operator is used unchanged, since blocks that the running batch does not need still
    serve as prefix cache. A size offered by the worker is limited to what a full batch of longest sequences
    can use.

    A model whose blocks take no memory has no KV cache.

    Raises:
        ConfigError: not even one block fits into the pool or a requested tier, or there are more tokens than
            an int32 can number; or a tier is requested for a model without a KV cache.
    """
    max_model_len = model_len(config, ready.model)
    if not ready.block_bytes:
        if config.kv_offload_gb:
            raise ConfigError(f"--kv-offload-gb must be 0: {ready.model.architecture} has no KV cache")
        return KVSize(0, 0, 0, 0, 0, 0)
    most_blocks = -(-max_model_len // config.block_size)
    num_groups = 1 + ready.model.num_window_groups
    if num_groups > 1:
        whole = row_bounds(config, ready.model, most_blocks * num_groups)
        most_blocks = whole.max_blocks_for(max_model_len)
    if config.num_blocks:
        num_blocks = config.num_blocks
    elif config.kv_cache_memory_bytes:
        num_blocks = config.kv_cache_memory_bytes // max(1, ready.block_bytes)
    else:
        num_blocks = min(
            ready.available_bytes // max(1, ready.block_bytes),
            config.max_num_seqs * most_blocks,
            MAX_POOL_TOKENS // config.block_size,
        )
    _check_pool(config, ready, num_blocks)
    bounds = row_bounds(config, ready.model, num_blocks)
    num_host_blocks = _num_host_blocks(config, ready.block_bytes)
    return KVSize(
        num_blocks=num_blocks,
        num_tokens=bounds.max_cached_tokens or num_blocks * config.block_size,
        num_full_sequences=bounds.num_sequences(num_blocks, max_model_len),
        num_bytes=num_blocks * ready.block_bytes,
        num_host_blocks=num_host_blocks,
        num_host_bytes=num_host_blocks * ready.block_bytes,
    )


def _check_pool(config: EngineConfig, ready: WorkerReady, num_blocks: int) -> None:
    """Refuse a pool that cannot serve a row, or whose tokens cannot be numbered; raises ConfigError."""
    if num_blocks < 1:
        memory = config.kv_cache_memory_bytes or ready.available_bytes
        raise ConfigError(
            f"the KV cache gets {memory} bytes, but one block of {config.block_size} tokens needs "
            f"{ready.block_bytes}: raise --kv-cache-memory-bytes or lower --block-size"
        )
    flag = "--num-blocks" if config.num_blocks else "--kv-cache-memory-bytes"
    num_groups = 1 + ready.model.num_window_groups
    if num_blocks < num_groups:
        raise ConfigError(
            f"{flag}: a KV cache of {num_blocks} blocks is too small for a model whose layers are in "
            f"{num_groups} groups, each of which needs one"
        )
    if num_blocks * config.block_size > MAX_POOL_TOKENS:
        raise ConfigError(
            f"{flag} makes a KV cache of {num_blocks} blocks of {config.block_size} tokens; "
            f"it may hold at most {MAX_POOL_TOKENS} tokens"
        )


def row_bounds(config: EngineConfig, model: ModelInfo, num_blocks: int) -> RowBounds:
    """Return what a row may take of a pool, as make_kv_cache_manager() will bound it."""
    chunk = config.max_prefill_tokens or config.max_num_batched_tokens
    num_in_flight = max_steps_in_flight(config.pipeline_parallel_size) - 1
    return bound_rows(num_blocks, config.block_size, chunk, LayerWindows.of(model), num_in_flight)


def _num_host_blocks(config: EngineConfig, block_bytes: int) -> int:
    num_bytes = int(config.kv_offload_gb * 2**30)
    num_blocks = num_bytes // max(1, block_bytes)
    if config.kv_offload_gb and not 1 <= num_blocks <= MAX_HOST_BLOCKS:
        raise ConfigError(
            f"--kv-offload-gb must be enough for 1 to {MAX_HOST_BLOCKS} blocks, but {num_bytes} bytes "
            f"hold {num_blocks} of {block_bytes} bytes"
        )
    return num_blocks


def scheduler_config(
    config: EngineConfig, model: ModelInfo, cache: KVCacheReady, num_host_blocks: int
) -> SchedulerConfig:
    """Return the limits for the scheduler.

    Args:
        config: given by the operator.
        model: as the worker described it.
        cache: what the worker allocated and measured.
        num_host_blocks: blocks of the CPU offload tier requested from the worker.
    """
    return SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_prefill_tokens=config.max_prefill_tokens,
        watermark_percent=config.watermark_percent,
        max_num_waiting=config.max_num_waiting,
        max_model_len=model_len(config, model),
        block_size=config.block_size,
        num_blocks=cache.num_blocks,
        num_stages=config.pipeline_parallel_size,
        policy=config.policy,
        enable_prefix_caching=config.enable_prefix_caching and cache.num_blocks > 0,
        tenant_weights=parse_weights(config.tenant_weights),
        max_waiting_tokens=config.max_waiting_tokens,
        queue_timeout_s=config.queue_timeout_s,
        target_itl_s=config.target_itl_ms / 1000,
        log_wait_s=config.log_wait_s,
        num_host_blocks=num_host_blocks,
        move_block_ns=cache.move_block_ns,
        num_speculative_tokens=_num_speculative_tokens(config, model),
        drafts_fill_blocks=config.speculation is not None and bool(config.speculation.model_method),
        num_adapter_slots=config.num_adapter_slots,
        adapters=named_adapters(config.lora),
    )


def _num_speculative_tokens(config: EngineConfig, model: ModelInfo) -> int:
    speculation = config.speculation
    return 0 if speculation is None or model.pooled_size else speculation.num_speculative_tokens
