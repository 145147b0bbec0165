"""What several GPUs do together at the start: amid a step none could tell the others that it lacks memory."""

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
    """Capture the decode steps of all sizes, and let torch's allocator hold what any step takes from now on.

    All ranks have to call it. A size that finds no memory on one of them runs eagerly on all.

    Args:
        runner: with no row in its batch; has none afterwards either. What is left in the KV cache is never
            read, since every block is written before it is attended to.
        limits: of its batch.

    Raises:
        ConfigError: there is not so much memory.
    """
    # Buffers come to their size first, as all graphs are dropped when they grow.
    _run_largest_steps(runner, limits)
    if _capture(runner):
        # For a capture that found no memory the allocator has given back what it held.
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
    """Capture decode steps, the largest first; returns how many."""
    started, count = time.perf_counter(), 0
    while runner.prepare_ahead():
        count += 1
    log_event(logger, logging.INFO, "graphs_captured", count=count, capture_s=time.perf_counter() - started)
    return count
