"""The `flash_attn` backend calls each edition as its signature asks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from splitserve.worker.attention.base import Scores
from splitserve.worker.attention.cpu import CpuAttention
from splitserve.worker.attention.flash import FlashAttention
from splitserve.worker.attention.flash_editions import EDITIONS, Paged
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.kv_cache.layout import BlockShape, layer_caches
from splitserve.worker.ops.cuda import CudaOps
from tests.worker.attention.flash_modules import MODULES
from tests.worker.attention.steps import Case, run_steps
from tests.worker.ops.turning import turned


class PlainWriter(CudaOps):
    """The kernels that write caches, in plain torch and on caches of any strides."""

    def __init__(self) -> None:
        """There is no library."""

    def kv_write(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        slots = slot_mapping.long()
        blocks, offsets = slots // k_cache.shape[2], slots % k_cache.shape[2]
        k_cache[blocks, :, offsets], v_cache[blocks, :, offsets] = k, v

    def rotary_kv_write(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        slot_mapping: Tensor,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 0.0,
        norm_offset: float = 0.0,
    ) -> None:
        assert not norm_offset, "not written here"
        q.copy_(turned(q, positions, cos_sin, q_norm, eps))
        self.kv_write(turned(k, positions, cos_sin, k_norm, eps), v, k_cache, v_cache, slot_mapping)


@pytest.mark.parametrize("edition", EDITIONS, ids=lambda edition: edition.name)
@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("window", [0, 1, 5])
def test_every_edition_agrees_with_our_kernels(edition, window: int, turns: bool) -> None:  # type: ignore[no-untyped-def]
    block_size = 256 if edition.block_multiple == 256 else 4
    case = Case(block_size=block_size, sliding_window=window, turns=turns, norms=window == 5)
    backend = FlashAttention(PlainWriter(), torch.device("cpu"), edition.adapt(MODULES[edition.module]))
    torch.testing.assert_close(
        run_steps(backend, case), run_steps(CpuAttention(), case), rtol=1e-4, atol=1e-5
    )


def test_blocks_that_left_the_window_are_not_read() -> None:
    block_size, window, length = 4, 5, 15
    backend = FlashAttention(
        PlainWriter(), torch.device("cpu"), EDITIONS[0].adapt(MODULES[EDITIONS[0].module])
    )
    (cache,) = layer_caches(backend.allocate(BlockShape(1, 2, block_size, 16, torch.float32), 8))
    generator = torch.Generator().manual_seed(0)
    cache.k.normal_(generator=generator)
    cache.v.normal_(generator=generator)
    # Another request's, which has failed. The second row's two tokens see positions from 9 on, its third
    # block.
    cache.v[7] = float("nan")
    tables = torch.tensor([[3, 4, 0, 0], [7, -1, 5, 6]], dtype=torch.int32)
    lengths, cu_seqlens = torch.tensor([6, length]).int(), torch.tensor([0, 1, 3]).int()
    meta = AttentionMetadata(lengths, lengths, tables, cu_seqlens, lengths)
    q = torch.randn(3, 4, 16, generator=generator)
    outs = []
    for first_blocks in ([7, -1], [1, 2]):
        tables[1, :2] = torch.tensor(first_blocks)
        out = torch.full_like(q, float("nan"))
        backend.begin_step(meta)
        backend.attend(out, q, cache, meta, Scores(0.25, window))
        outs.append(out)
    assert outs[0].isfinite().all()
    torch.testing.assert_close(*outs, rtol=0, atol=0)


def test_a_step_names_its_own_blocks() -> None:
    seen: list[Tensor] = []

    def attend(q: Tensor, cache: Paged) -> Tensor:
        seen.append(cache.meta.block_tables)
        return q

    backend = FlashAttention(PlainWriter(), torch.device("cpu"), attend)
    (cache,) = layer_caches(backend.allocate(BlockShape(1, 1, 2, 8, torch.float32), 8))
    q, cu_seqlens = torch.zeros(1, 1, 8), torch.tensor([0, 1]).int()
    for table, length in (([1, 2, 3], 5), ([4, 5, 6], 6)):
        lengths, tables = torch.tensor([length]).int(), torch.tensor([table]).int()
        meta = AttentionMetadata(lengths, lengths, tables, cu_seqlens, lengths)
        backend.begin_step(meta)
        for _ in range(2):
            backend.attend(q, q, cache, meta, Scores(1.0, 2))
    # Two layers share what the step's first has computed; the last positions seen are 3 and 4.
    assert [tables.tolist() for tables in seen] == [[[2, 2, 3]]] * 2 + [[[6, 6, 6]]] * 2
    assert seen[0] is seen[1]
