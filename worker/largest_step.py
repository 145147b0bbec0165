"""The largest steps a worker may get, to measure the memory they need in addition to the KV cache."""

from __future__ import annotations

import torch

from splitserve.engine_core.errors import DeviceMemoryError
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.batch.input_batch import BatchLimits
from splitserve.worker.model_runner import ModelRunner

# Filters, penalties, masks and logprobs, so that their memory is measured too.
_SAMPLING = SequenceSampling(
    seed=0,
    top_k=8,
    top_p=0.9,
    logprobs=1,
    prompt_logprobs=1,
    presence_penalty=0.1,
    logit_bias={0: 0.0},
    allowed_token_ids=(0,),
)


def blocks_of_largest_step(limits: BatchLimits) -> int:
    """Most KV blocks that the rows of a step take together."""
    return max(sum(_num_blocks(tokens, limits) for tokens in lengths) for lengths in _steps(limits))


def run_largest_step(runner: ModelRunner, limits: BatchLimits) -> None:
    """Prefill as many tokens as fit in a step, once in many rows that all sample and once in one row.

    What drafts beside the model runs its largest pass after that.

    Args:
        runner: with an empty batch, which is empty again afterwards.
        limits: of the runner's batch.

    Raises:
        RuntimeError: the device failed; torch.OutOfMemoryError if a step does not fit.
    """
    for lengths in _steps(limits):
        rows, num_tokens = pack_int32(range(len(lengths))), pack_int32(lengths)
        output = runner.execute(SchedulerOutput(0, rows, num_tokens, new_rows=_new_rows(limits, lengths)))
        for error in output.errors:
            # Rows that fail for another reason take as much memory as others.
            if error.code == DeviceMemoryError.code:
                raise torch.OutOfMemoryError(error.message)
        runner.execute(SchedulerOutput(0, rows=b"", num_tokens=b"", freed_rows=rows))
    draft_model = None if runner.drafting is None else runner.drafting.draft_model
    if draft_model is not None:
        draft_model.run_largest()


def _steps(limits: BatchLimits) -> tuple[list[int], list[int]]:
    """Tokens of the rows of both steps, within budget and context."""
    budget, longest = limits.max_num_batched_tokens, limits.max_model_len
    num_rows = min(limits.max_num_seqs, budget)
    share, rest = divmod(budget, num_rows)
    return [min(share + (i < rest), longest) for i in range(num_rows)], [min(budget, longest)]


def _num_blocks(tokens: int, limits: BatchLimits) -> int:
    """Blocks of a prompt and the token sampled after it, in all groups of layers."""
    return -(-(tokens + 1) // limits.block_size) * (1 + limits.num_window_groups)


def _new_rows(limits: BatchLimits, lengths: list[int]) -> list[NewRow]:
    rows, first_block = [], 0
    for row, tokens in enumerate(lengths):
        end_block = first_block + _num_blocks(tokens, limits)
        # In a pool smaller than such a step, blocks are written more than once.
        block_ids = [i % limits.num_blocks for i in range(first_block, end_block)]
        num_in_first = len(block_ids) // (1 + limits.num_window_groups)
        rows.append(
            NewRow(
                row=row,
                token_ids=pack_int32([i % limits.vocab_size for i in range(tokens)]),
                num_prompt_tokens=tokens,
                num_computed_tokens=0,
                block_ids=pack_int32(block_ids[:num_in_first]),
                sampling=_SAMPLING,
                window_block_ids=pack_int32(block_ids[num_in_first:]),
            )
        )
        first_block = end_block
    return rows
