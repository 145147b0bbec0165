"""A first pass of each kind, so that no request pays for the first use of buffers, threads and kernels."""

from __future__ import annotations

import logging

from engine_core.ipc.codec import pack_int32
from engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from engine_core.sampling_params import SamplingParams
from worker.input_batch import BatchLimits
from worker.model_runner import ModelRunner

logger = logging.getLogger(__name__)

_PROMPT_TOKENS = 32


def warm_up(runner: ModelRunner, limits: BatchLimits) -> None:
    """Prefill a short prompt, decode one token, free the row.

    Args:
        runner: with no row in its batch; has none afterwards either. What is left in the KV cache is never
            read, since every block is written before it is attended to.
        limits: of the runner's batch.
    """
    room = min(limits.max_model_len, limits.max_num_batched_tokens, limits.num_blocks * limits.block_size) - 1
    num_prompt = min(_PROMPT_TOKENS, room)
    if num_prompt < 1:
        return
    num_blocks = -(-(num_prompt + 1) // limits.block_size)
    row = NewRow(
        row=0,
        token_ids=pack_int32([i % limits.vocab_size for i in range(num_prompt)]),
        num_prompt_tokens=num_prompt,
        num_computed_tokens=0,
        block_ids=pack_int32(range(num_blocks)),
        sampling=SamplingParams(seed=0, top_k=8, top_p=0.9, logprobs=1, presence_penalty=0.1),
    )
    steps = [
        SchedulerOutput(0, rows=pack_int32([0]), num_tokens=pack_int32([num_prompt]), new_rows=[row]),
        SchedulerOutput(0, rows=pack_int32([0]), num_tokens=pack_int32([1]), last_token_ids=pack_int32([0])),
        SchedulerOutput(0, rows=b"", num_tokens=b"", freed_rows=pack_int32([0])),
    ]
    for step in steps:
        for error in runner.execute(step).errors:
            # One bad embedding row makes a checkpoint no worse for requests that do not use it.
            logger.warning("warm_up_failed: %s", error.message)
