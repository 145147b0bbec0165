"""rotary_kv_write: norm and rotation of queries and keys, and the write of keys and values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits
from tests.worker.ops.turning import make_table, turned

EPS = 1e-5
# Whole registers of each instruction set; partial ones; a part of the head unturned.
SHAPES = [(64, 64), (128, 128), (24, 24), (80, 32), (10, 6)]
HEADS = [5, 2, 2]


class Step:
    """QKV of some tokens as slices of one buffer, caches of -7, and the weights of the norms, if any."""

    def __init__(
        self,
        slots: list[int],
        head_dim: int,
        table: Tensor,
        dtype: torch.dtype,
        has_norms: bool,
        block: int = 4,
    ) -> None:
        torch.manual_seed(len(slots))
        self.qkv = torch.randn(len(slots), sum(HEADS), head_dim).mul(3).to(dtype)
        self.table, self.slots = table, torch.tensor(slots, dtype=torch.int32)
        self.positions = torch.randint(0, len(table), (len(slots),), dtype=torch.int32)
        self.norms: tuple[Tensor, Tensor] | tuple[None, None] = (None, None)
        if has_norms:
            self.norms = (torch.randn(head_dim).to(dtype), torch.randn(head_dim).to(dtype))
        size = (max(slots) // block + 2, HEADS[1], block, head_dim)
        self.k_cache, self.v_cache = (torch.full(size, -7.0, dtype=dtype) for _ in range(2))

    def run(self, begin: int = 0, end: int | None = None, offset: float = 0.0) -> None:
        span = slice(begin, end)
        q, k, v = self.qkv[span].split(HEADS, dim=1)
        places = (self.k_cache, self.v_cache, self.slots[span])
        q_norm, k_norm = self.norms
        ops.rotary_kv_write(q, k, v, self.positions[span], self.table, *places, q_norm, k_norm, EPS, offset)

    @property
    def q(self) -> Tensor:
        return self.qkv[:, : HEADS[0]]

    @property
    def keys(self) -> Tensor:
        """The cache's keys, [slots, heads, D]."""
        pair = 4 // self.k_cache.element_size()
        blocks, heads, size, dim = self.k_cache.shape
        plain = self.k_cache.view(blocks, heads, dim // pair, size, pair).permute(0, 3, 1, 2, 4)
        return plain.reshape(blocks * size, heads, dim)

    @property
    def values(self) -> Tensor:
        """The cache's values, [slots, heads, D]."""
        pair = 4 // self.v_cache.element_size()
        blocks, heads, size, dim = self.v_cache.shape
        plain = self.v_cache.view(blocks, heads, size // pair, dim, pair).permute(0, 2, 4, 1, 3)
        return plain.reshape(blocks * size, heads, dim)


@pytest.fixture(params=[False, True], ids=["plain", "norms"])
def has_norms(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.mark.parametrize(("head_dim", "rot_dim"), SHAPES)
def test_queries_and_written_keys_match_the_reference(
    head_dim: int, rot_dim: int, has_norms: bool, dtype: torch.dtype
) -> None:
    slots = [3, 17, 18, 9, 0, 1, 2, 12, 40]
    step = Step(slots, head_dim, make_table(rot_dim), dtype, has_norms)
    q, k, v = step.qkv.clone().split(HEADS, dim=1)
    step.run()
    for x, norm, ours in ((q, step.norms[0], step.q), (k, step.norms[1], step.keys[slots])):
        torchs = turned(x, step.positions, step.table, norm, EPS)
        exact = turned(x.double(), step.positions, step.table, norm, EPS)
        assert_as_exact_as_torch(ours, torchs, exact)
    assert_same_bits(step.values[slots], v)
    others = [slot for slot in range(len(step.keys)) if slot not in slots]
    assert (step.keys[others] == -7).all()
    assert (step.values[others] == -7).all()


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("head_dim", [128, 24])
def test_norms_have_the_bits_of_rms_norm_and_are_rounded_before_the_rotation(
    head_dim: int, offset: float, dtype: torch.dtype
) -> None:
    step, apart = (Step([1, 2, 5, -1], head_dim, make_table(head_dim), dtype, True) for _ in range(2))
    step.run(offset=offset)
    q, k, _ = apart.qkv.split(HEADS, dim=1)
    for x, weight in zip((q, k), apart.norms, strict=True):
        rows = x.reshape(-1, head_dim)
        assert weight is not None
        ops.rms_norm(rows, rows, weight, EPS, offset)
        x.copy_(rows.view_as(x))
    apart.norms = (None, None)
    apart.run()
    assert_same_bits(step.q, apart.q)
    assert_same_bits(step.k_cache, apart.k_cache)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("block", [16, 6, 32])
def test_the_bits_depend_on_neither_batch_nor_threads_nor_which_slots_are_written_together(
    block: int, threads: int, has_norms: bool, dtype: torch.dtype
) -> None:
    # Runs that begin and end anywhere in a block or stop early, and single slots; several threads cut them.
    slots = [*range(3, 70), *range(96, 128), -1, *range(200, 133, -1), *range(75, 80)]
    whole, single = (Step(slots, 64, make_table(64), dtype, has_norms, block) for _ in range(2))
    ops.set_num_threads(threads)
    whole.run()
    ops.set_num_threads(1)
    for token in range(len(slots)):
        single.run(token, token + 1)
    assert_same_bits(single.q, whole.q)
    assert_same_bits(single.k_cache, whole.k_cache)
    assert_same_bits(single.v_cache, whole.v_cache)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_a_negative_slot_is_not_written_but_its_query_is_turned(index_dtype: torch.dtype) -> None:
    step, alone = (
        Step([-1, 2], 8, make_table(8), torch.float32, True),
        Step([1, 2], 8, make_table(8), torch.float32, True),
    )
    for each in (step, alone):
        each.slots, each.positions = each.slots.to(index_dtype), each.positions.to(index_dtype)
        each.run()
    assert_same_bits(step.q, alone.q)
    assert (step.keys[[0, 1, 3]] == -7).all()
    assert_same_bits(step.keys[2], alone.keys[2])


def test_a_nan_stays_in_its_head_and_its_own_half() -> None:
    step, expected = (Step([1], 64, make_table(64), torch.bfloat16, False) for _ in range(2))
    step.qkv[0, 1, 5] = float("nan")
    step.run()
    expected.run()
    assert step.q[0, 1].isnan().nonzero().flatten().tolist() == [5, 37]
    assert_same_bits(step.q[0, 2:], expected.q[0, 2:])


@pytest.mark.parametrize(
    ("slot", "position", "named"),
    [(8, 0, "slot_mapping: 8 is outside"), (1, 50, "positions"), (1, -1, "positions")],
)
def test_ids_are_checked_before_anything_is_written(slot: int, position: int, named: str) -> None:
    step = Step([0, 1], 8, make_table(8), torch.float32, False)
    step.slots[1], step.positions[1] = slot, position
    before = step.qkv.clone()
    with pytest.raises(ValueError, match=named):
        step.run()
    assert_same_bits(step.qkv, before)
    assert (step.keys == -7).all()
