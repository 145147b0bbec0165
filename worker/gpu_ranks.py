"""What several GPUs prepare at startup, since a rank out of memory mid-step cannot tell the others."""

from __future__ import annotations

import logging
import time

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.process.logs import log_event
from splitserve.worker.batch.input_batch import BatchLimits
from splitserve.worker.device.out_of_memory import is_out_of_memory
from splitserve.worker.largest_step import run_largest_step
from splitserve.worker.model_runner import ModelRunner

logger = logging.getLogger(__name__)


def prepare_together(runner: ModelRunner, limits: BatchLimits) -> None:
    """Capture decode graphs of all sizes, and make torch's allocator reserve what any later step needs.

    All ranks must call it. A size that runs out of memory on one of them runs eagerly on all.

    Args:
        runner: with an empty batch, which is empty again afterwards. What is left in the KV cache is never
            read, since every block is written before it is attended to.
        limits: of the runner's batch.

    Raises:
        ConfigError: there is not enough memory.
    """
    # Grow the buffers to full size first, since all graphs are dropped when a buffer grows.
    _run_largest_steps(runner, limits)
    if _capture(runner):
        # A capture that ran out of memory has made the allocator release its cache.
        _run_largest_steps(runner, limits)


def _run_largest_steps(runner: ModelRunner, limits: BatchLimits) -> None:
    try:
        run_largest_step(runner, limits)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(
            f"a KV cache of {limits.num_blocks} blocks leaves no memory for a step of "
            f"--max-num-batched-tokens {limits.max_num_batched_tokens}: lower it, --num-blocks, "
            f"--kv-cache-memory-bytes or --gpu-memory-utilization: {error}"
        ) from None


def _capture(runner: ModelRunner) -> int:
    """Capture decode graphs, the largest first; returns how many."""
    started, count = time.perf_counter(), 0
    while runner.prepare_ahead():
        count += 1
    log_event(logger, logging.INFO, "graphs_captured", count=count, capture_s=time.perf_counter() - started)
    return count
