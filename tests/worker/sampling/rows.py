"""A batch whose rows hold given tokens and parameters, for tests that hand the sampler its logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.batch.input_batch import BatchLimits, InputBatch
from splitserve.worker.device.cpu import CpuDevice
from splitserve.worker.grammar.compiler import GrammarCompiler
from splitserve.worker.sampling.sampler import Sampled, Sampler

VOCAB = 64
EOS = 3


class Row(NamedTuple):
    """One row: its parameters, prompt and output so far."""

    sampling: SequenceSampling
    prompt: Sequence[int] = (1, 2)
    output: Sequence[int] = ()


def make_batch(rows: Sequence[Row], vocab_size: int = VOCAB, eos: int = EOS) -> InputBatch:
    limits = BatchLimits(
        max_num_seqs=max(len(rows), 1),
        max_num_batched_tokens=1024,
        max_model_len=64,
        block_size=16,
        num_blocks=8,
        vocab_size=vocab_size,
    )
    batch = InputBatch(limits, eos_token_ids=[eos])
    new_rows = [
        NewRow(
            row=i,
            token_ids=pack_int32([*row.prompt, *row.output]),
            num_prompt_tokens=len(row.prompt),
            num_computed_tokens=0,
            block_ids=pack_int32([0, 1, 2, 3]),
            sampling=row.sampling,
        )
        for i, row in enumerate(rows)
    ]
    batch.apply(SchedulerOutput(1, rows=b"", num_tokens=b"", new_rows=new_rows))
    assert batch.failures == {}
    return batch


def sampler_of(batch: InputBatch) -> Sampler:
    """A sampler on the CPU that knows no tokenizer: its rows have no grammar."""
    return Sampler(CpuDevice(), batch, GrammarCompiler("", batch.limits.vocab_size, [EOS]))


def sample(rows: Sequence[Row], logits: torch.Tensor) -> Sampled:
    """Sample every row once from its own logits, float32 [len(rows), V], which stay as they are."""
    batch = make_batch(rows, logits.shape[1])
    return sampler_of(batch).sample(logits.clone(), np.arange(len(rows), dtype=np.int32))


def tokens(rows: Sequence[Row], logits: torch.Tensor) -> list[int]:
    sampled = sample(rows, logits)
    assert sampled.errors == []
    assert sampled.rows.tolist() == list(range(len(rows)))
    return sampled.token_ids.tolist()


def draws(sampling: SequenceSampling, logits: torch.Tensor, count: int) -> np.ndarray:
    """Token ids of `count` rows that share logits [V] and parameters but for the seed."""
    batch = make_batch([Row(sampling)] * count, logits.shape[0])
    batch.sampling.columns.seed[:] = np.arange(count) + 12345
    sampled = sampler_of(batch).sample(logits.repeat(count, 1), np.arange(count, dtype=np.int32))
    return sampled.token_ids


def peaked(*token_ids: int, vocab_size: int = VOCAB) -> torch.Tensor:
    """Logits [V] that are 5.0 at the first id, 4.0 at the second, and so on; 0 elsewhere."""
    logits = torch.zeros(vocab_size)
    for rank, token_id in enumerate(token_ids):
        logits[token_id] = 5.0 - rank
    return logits
