"""Latent attention: writing latents, a reference, and the same bits in prefill, chunk and decode."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.packed_weight import PackedWeight
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits

SCALE = 0.1


@dataclass(frozen=True)
class Shape:
    heads: int
    latent: int
    rotary: int
    block_size: int = 16


SHAPES = [
    Shape(16, 512, 64),
    Shape(6, 64, 32, 8),
    Shape(70, 32, 32, 5),
    Shape(1, 96, 128, 48),
    Shape(3, 480, 64),
]
NARROW = Shape(5, 64, 32)


class Latents:
    """Sequences of random latents in scattered blocks of one cache; slots without a token hold NaN."""

    def __init__(self, shape: Shape, lengths: list[int], dtype: torch.dtype) -> None:
        self.shape = shape
        width = shape.latent + shape.rotary
        self.rows = [torch.randn(length, width).to(dtype) for length in lengths]
        self.q = [torch.randn(length, shape.heads, width).to(dtype) for length in lengths]
        counts = [-(-length // shape.block_size) for length in lengths]
        self.cache = torch.full((sum(counts) + 2, 1, shape.block_size, width), float("nan"), dtype=dtype)
        self.tables = torch.full((len(lengths), max(counts) + 1), 1 << 30, dtype=torch.int32)
        free = torch.randperm(len(self.cache)).int()
        for i, count in enumerate(counts):
            self.tables[i, :count], free = free[:count], free[count:]
            self.put(i, self.rows[i])

    def put(self, sequence: int, rows: Tensor) -> None:
        """Write rows of a sequence into the cache, from its first token on."""
        positions, size = torch.arange(len(rows)), self.shape.block_size
        self.cache[self.tables[sequence, positions // size].long(), 0, positions % size] = rows

    def attend(self, *spans: tuple[int, int]) -> list[Tensor]:
        """Return attention of positions [begin, end) of each sequence, in one call, in place of queries."""
        q = torch.cat([q[begin:end] for q, (begin, end) in zip(self.q, spans, strict=True)])
        lengths = [end - begin for begin, end in spans]
        starts = torch.tensor([0, *lengths]).cumsum(0).int()
        ends = torch.tensor([end for _, end in spans], dtype=torch.int32)
        # Heads apart from each other, as they come from their own matrices.
        latent = q[..., : self.shape.latent].transpose(0, 1).contiguous().transpose(0, 1)
        rotary = q[..., self.shape.latent :]
        ops.latents.attend(latent, latent, rotary, self.cache, (self.tables, starts, ends), SCALE)
        return list(latent.split(lengths))


def reference(q: Tensor, rows: Tensor, latent: int) -> Tensor:
    """Causal attention of the last queries [T, Hq, W] to rows [L, W], in their dtype."""
    scores = torch.einsum("thw,lw->htl", q, rows) * SCALE
    first = len(rows) - len(q)
    hidden = torch.ones(len(q), len(rows), dtype=torch.bool).triu(first + 1)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("htl,lc->thc", weights, rows[:, :latent])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_of_latents_are_those_of_the_reference(shape: Shape, dtype: torch.dtype) -> None:
    lengths = [1, 63, 130]
    batch = Latents(shape, lengths, dtype)
    for out, q, rows in zip(batch.attend(*((0, n) for n in lengths)), batch.q, batch.rows, strict=True):
        exact = reference(q.double(), rows.double(), shape.latent)
        assert_as_exact_as_torch(out, reference(q, rows, shape.latent), exact)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chunks_and_decode_give_the_bits_of_a_prefill_in_any_company(
    shape: Shape, dtype: torch.dtype
) -> None:
    batch = Latents(shape, [201, 77], dtype)
    whole, _ = batch.attend((0, 201), (0, 77))
    for begin, end in [(0, 1), (0, 65), (64, 129), (100, 101), (13, 200), (200, 201)]:
        part, _ = batch.attend((begin, end), (70, 70 + begin % 7))
        assert_same_bits(part, whole[begin:end])


def test_splitting_a_long_context_over_threads_does_not_change_bits(dtype: torch.dtype) -> None:
    length = 2100
    batch = Latents(NARROW, [length], dtype)
    (whole,) = batch.attend((0, length))
    begin = length - 3
    exact = reference(batch.q[0][begin:].double(), batch.rows[0].double(), NARROW.latent)
    plain = reference(batch.q[0][begin:], batch.rows[0], NARROW.latent)
    assert_as_exact_as_torch(whole[begin:], plain, exact)
    for threads in (1, 2, 7):
        ops.set_num_threads(threads)
        for span in [(1023, 1026), (length - 1, length)]:
            (part,) = batch.attend(span)
            assert_same_bits(part, whole[slice(*span)])


@pytest.mark.parametrize("position", [7, 12, 64])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_latent_that_is_no_number_spoils_no_earlier_row(
    value: float, position: int, dtype: torch.dtype
) -> None:
    batch = Latents(NARROW, [80], dtype)
    (clean,) = batch.attend((0, 80))
    batch.rows[0][position, 3] = value
    batch.put(0, batch.rows[0])
    (dirty,) = batch.attend((0, 80))
    assert_same_bits(dirty[:position], clean[:position])
    assert not dirty[position:, :, 3].isfinite().any()


def test_writing_norms_latents_and_turns_keys_and_queries(dtype: torch.dtype) -> None:
    latent, rotary, size, eps = 64, 32, 8, 1e-6
    fused, heads = torch.randn(5, latent + rotary + 7).to(dtype), torch.randn(5, 3, 48 + rotary).to(dtype)
    rows, q = fused[:, 7:], heads[..., 48:]
    norm, cos_sin = torch.rand(latent).to(dtype), torch.randn(40, rotary)
    positions = torch.tensor([3, 0, 39, 7, 8], dtype=torch.int32)
    slots = torch.tensor([17, 2, -1, 3, 4], dtype=torch.int32)
    cache = torch.full((3, 1, size, latent + rotary), 9.0, dtype=dtype)
    normed = torch.empty(5, latent, dtype=dtype)
    ops.rms_norm(normed, rows[:, :latent], norm, eps)
    before = fused.clone()
    wanted_q, keys = q.clone(), rows[:, None, latent:].clone()
    ops.whole.rotate(wanted_q, positions, cos_sin)
    ops.whole.rotate(keys, positions, cos_sin)
    wanted = torch.cat((normed, keys[:, 0]), dim=1)
    plain = heads[..., :48].clone()
    ops.latents.write(q, rows, positions, cos_sin, cache, slots, norm, eps)
    kept = slots >= 0
    flat = cache.view(-1, latent + rotary)
    assert_same_bits(flat[slots[kept].long()], wanted[kept])
    assert_same_bits(q, wanted_q)
    assert_same_bits(fused, before)
    assert_same_bits(heads[..., :48], plain)
    untouched = torch.ones(len(flat), dtype=torch.bool)
    untouched[slots[kept].long()] = False
    assert (flat[untouched] == 9.0).all()


@pytest.mark.parametrize(("outputs", "inputs"), [(64, 24), (40, 96), (512, 128)])
def test_each_head_is_multiplied_with_its_own_matrix(outputs: int, inputs: int, dtype: torch.dtype) -> None:
    heads, count = 5, 19
    matrices = [torch.randn(outputs, inputs).to(dtype) for _ in range(heads)]
    weight = PackedWeight.of_experts(matrices)
    x = torch.randn(count, heads, inputs + 8).to(dtype)[..., 8:]
    out = torch.empty(count, heads, outputs + 8, dtype=dtype)[..., 8:]
    ops.latents.multiply_heads(out, x, weight)
    for head, matrix in enumerate(matrices):
        alone = torch.empty(count, outputs, dtype=dtype)
        ops.linear(alone, x[:, head], PackedWeight.of(matrix))
        assert_same_bits(out[:, head], alone)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"latent": 40}, "multiple of 32"),
        ({"latent": 544}, "multiple of 32 up to 512"),
        ({"rotary": 160}, "multiple of 32 up to 128"),
        ({"length": 90}, "needs 6 blocks"),
    ],
)
def test_what_the_kernel_cannot_read_is_refused(change: dict[str, int], word: str) -> None:
    sizes = {"latent": 64, "rotary": 32, "length": 16, **change}
    latent, rotary, length = sizes["latent"], sizes["rotary"], sizes["length"]
    q = torch.zeros(1, 2, latent + rotary)
    rows = (torch.zeros(1, 2, dtype=torch.int32), _ints(0, 1), _ints(length))
    cache = torch.zeros(4, 1, 16, latent + rotary)
    with pytest.raises(ValueError, match=word):
        ops.latents.attend(torch.empty(1, 2, latent), q[..., :latent], q[..., latent:], cache, rows, SCALE)


def _ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)
