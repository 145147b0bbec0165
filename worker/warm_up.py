"""A first pass of each kind, so that no request pays for first-use costs.

It also checks that the worker can compute at all before it reports ready.
"""

from __future__ import annotations

from splitserve.engine_core.errors import ConfigError, DeviceMemoryError, ModelLoadError
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, RowError, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.batch.input_batch import BatchLimits
from splitserve.worker.model_runner import ModelRunner

_PROMPT_TOKENS = 32


def warm_up(runner: ModelRunner, limits: BatchLimits) -> None:
    """Prefill a short prompt, decode one token, free the row; then prefill one of another token.

    Without a KV cache nothing is decoded.

    Args:
        runner: with no row in its batch; has none afterwards either. What is left in the KV cache is never
            read, since every block is written before it is attended to.
        limits: of the runner's batch.

    Raises:
        ConfigError: a step ran out of memory.
        ModelLoadError: the model produces only NaN.
    """
    has_cache = limits.num_blocks > 0
    room = min(limits.max_model_len, limits.max_num_batched_tokens)
    if has_cache:
        room = min(room, limits.num_blocks // (1 + limits.num_window_groups) * limits.block_size) - 1
    num_prompt = min(_PROMPT_TOKENS, room)
    if num_prompt < 1:
        return
    prompt = [i % limits.vocab_size for i in range(num_prompt)]
    # Every rank runs both, whatever comes of the first: another may see what this one does not.
    # Two tokens where they fit: a step of one would count as a use of the recorded step of one row.
    other = [limits.vocab_size - 1] * min(2, room)
    passes = [_run(runner, limits, prompt, decode=has_cache), _run(runner, limits, other)]
    for errors in passes:
        for error in errors:
            if error.code == DeviceMemoryError.code:
                raise ConfigError(
                    f"{error.message}, in the very first step: lower --gpu-memory-utilization or set "
                    "--kv-cache-memory-bytes"
                )
    # One bad row of the embedding makes a checkpoint no worse for requests that do not use it.
    if all(passes):
        first = passes[0][0]
        raise ModelLoadError(f"the model cannot compute a single step ({first.code}: {first.message})")


def _run(runner: ModelRunner, limits: BatchLimits, prompt: list[int], decode: bool = False) -> list[RowError]:
    """Compute a prompt, and one token after it if asked to; return what went wrong."""
    num_blocks = -(-(len(prompt) + 1) // limits.block_size) if limits.num_blocks else 0
    row = NewRow(
        row=0,
        token_ids=pack_int32(prompt),
        num_prompt_tokens=len(prompt),
        num_computed_tokens=0,
        block_ids=pack_int32(range(num_blocks)),
        sampling=SequenceSampling(seed=0, top_k=8, top_p=0.9, logprobs=1, presence_penalty=0.1),
        window_block_ids=pack_int32(range(num_blocks, num_blocks * (1 + limits.num_window_groups))),
    )
    one = pack_int32([0])
    steps = [SchedulerOutput(0, rows=one, num_tokens=pack_int32([len(prompt)]), new_rows=[row])]
    if decode:
        steps.append(SchedulerOutput(0, rows=one, num_tokens=pack_int32([1]), last_token_ids=one))
    steps.append(SchedulerOutput(0, rows=b"", num_tokens=b"", freed_rows=one))
    return [error for step in steps for error in runner.execute(step).errors]
