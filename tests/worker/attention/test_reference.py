"""The `torch` backend computes what the `cpu` backend does."""

from __future__ import annotations

import pytest
import torch

from splitserve.worker.attention.cpu import CpuAttention
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.attention.reference import TorchAttention
from splitserve.worker.kv_cache.layout import BlockShape, layer_caches
from tests.worker.attention.steps import Case, run_steps

CPU = torch.device("cpu")
CASES = [
    Case(),
    Case(num_heads=3, num_kv_heads=3, head_dim=24, block_size=6),
    Case(num_heads=8, num_kv_heads=1, block_size=16),
    Case(sliding_window=5),
    Case(sliding_window=1),
    Case(turns=True),
    Case(turns=True, norms=True),
    Case(turns=True, norms=True, turned=10, norm_offset=1.0),
    Case(softcap=2.0, sliding_window=5),
    Case(sinks=True),
    Case(sinks=True, sliding_window=5, num_heads=6),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_it_agrees_with_our_kernels(case: Case, seed: int) -> None:
    ours, theirs = run_steps(CpuAttention(), case, seed), run_steps(TorchAttention(CPU), case, seed)
    torch.testing.assert_close(theirs, ours, rtol=2e-5, atol=2e-6)


def test_it_agrees_in_bfloat16() -> None:
    case = Case(dtype=torch.bfloat16, turns=True, norms=True)
    ours, theirs = run_steps(CpuAttention(), case), run_steps(TorchAttention(CPU), case)
    torch.testing.assert_close(theirs, ours, rtol=2e-2, atol=1e-2)


def test_blocks_that_left_the_window_are_not_read() -> None:
    class Leaving(TorchAttention):
        """Names no block that lies wholly before the window of the step's first token."""

        def attend(self, out, q, kv_cache, meta, scores):  # type: ignore[no-untyped-def]
            starts = meta.seq_lens - meta.cu_seqlens_q.diff()
            gone = (starts - scores.sliding_window + 1).clamp(min=0) // kv_cache.k.shape[1]
            column = torch.arange(meta.block_tables.shape[1])
            tables = torch.where(column < gone[:, None], 1000, meta.block_tables)
            meta = meta._replace(block_tables=tables.int())
            super().attend(out, q, kv_cache, meta, scores)

    case = Case(sliding_window=5)
    assert torch.equal(run_steps(Leaving(CPU), case), run_steps(TorchAttention(CPU), case))


def test_a_negative_slot_writes_nothing() -> None:
    backend = TorchAttention(CPU)
    pool = backend.allocate(BlockShape(1, 2, 4, 8, torch.float32), 3)
    (cache,) = layer_caches(pool)
    zero, one = torch.zeros(1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    meta = AttentionMetadata(zero, -one, zero[None], torch.cat((zero, one)), one)
    x = torch.ones(1, 2, 8)
    backend.write(x, x, x, cache, meta, None)
    assert not pool.any()
    backend.write(x, x, x, cache, meta._replace(slot_mapping=zero), None)
    assert pool.any()
