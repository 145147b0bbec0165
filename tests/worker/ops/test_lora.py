"""lora: deltas of adapters, each row by its own, others as they were."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.layers.lora import LoraRows, LoraWeights, in_pairs, in_panels
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits

NAN = float("nan")


def weights_of(ranks: list[int], size: tuple[int, int, int], dtype: torch.dtype, pair: int) -> LoraWeights:
    """Adapters of these ranks, K inputs, N outputs and room for R ranks; NaN where nothing may be read."""
    depth, cols, room = size
    num_pairs, num_panels = -(-depth // pair), -(-cols // 64)
    # Slots lie apart, as those of a layer among others do.
    a = torch.full((len(ranks), num_pairs + 3, room, pair), NAN, dtype=dtype)[:, :num_pairs]
    b = torch.full((len(ranks), num_panels + 1, room // pair, 64, pair), NAN, dtype=dtype)[:, :num_panels]
    for slot, rank in enumerate(ranks):
        if rank:
            a[slot], b[slot] = 0.0, 0.0
            a[slot, :, :rank] = in_pairs((torch.randn(depth, rank) * depth**-0.5).to(dtype), pair)
            b[slot, :, : -(-rank // pair)] = in_panels(torch.randn(rank, cols).to(dtype), pair)
    scales = torch.rand(len(ranks)) + 0.5
    return LoraWeights(a, b, scales, torch.tensor(ranks, dtype=torch.int32))


def own_weights_of(ranks: list[int], size: tuple[int, int, int], dtype: torch.dtype) -> LoraWeights:
    """The same as this device reads them."""
    return weights_of(ranks, size, dtype, ops.lora.pair(dtype))


def rows_of(slots: list[int], room: int) -> LoraRows:
    count = len(slots)
    order = torch.full((count,), -1, dtype=torch.int32)
    return LoraRows(torch.tensor(slots, dtype=torch.int32), order, torch.full((count, room), NAN))


def add(out: Tensor, x: Tensor, weights: LoraWeights, slots: list[int]) -> Tensor:
    """Return out with the deltas added."""
    result = out.clone()
    ops.lora.add(result, x, weights, rows_of(slots, weights.a.shape[2]))
    return result


def plain(weights: LoraWeights, slot: int) -> tuple[Tensor, Tensor]:
    """Return the matrices of a slot, [at least K, R] and [R, at least N]."""
    a, b = weights.a[slot], weights.b[slot]
    return a.transpose(1, 2).flatten(0, 1), b.permute(1, 3, 0, 2).flatten(2, 3).flatten(0, 1)


def reference(out: Tensor, x: Tensor, weights: LoraWeights, slots: list[int], dtype: torch.dtype) -> Tensor:
    """By torch, computed in a dtype."""
    result = out.to(dtype, copy=True)
    for row, slot in enumerate(slots):
        if slot >= 0 and weights.ranks[slot]:
            rank = int(weights.ranks[slot])
            a, b = plain(weights, slot)
            inner = x[row].to(dtype) @ a[: x.shape[1], :rank].to(dtype) * weights.scales[slot].to(dtype)
            result[row] += inner @ b[:rank, : out.shape[1]].to(dtype)
    return result


SLOTS = [2, -1, 0, 2, 3, 2, -1, 1, *[2] * 19, 0, 2, 1]


@pytest.mark.parametrize(
    ("depth", "cols", "room"), [(64, 96, 16), (33, 7, 16), (1100, 530, 32), (5, 200, 256)]
)
def test_each_row_gets_the_delta_of_its_adapter(depth: int, cols: int, room: int, dtype: torch.dtype) -> None:
    weights = own_weights_of([room, 1, room - 3, 0], (depth, cols, room), dtype)
    x, out = torch.randn(len(SLOTS), depth).to(dtype), torch.randn(len(SLOTS), cols).to(dtype)
    ours = add(out, x, weights, SLOTS)
    exact, torchs = (reference(out, x, weights, SLOTS, kind) for kind in (torch.float64, dtype))
    assert_as_exact_as_torch(ours, torchs, exact)
    for row, slot in enumerate(SLOTS):
        if slot in (-1, 3):
            assert_same_bits(ours[row], out[row])


def test_a_row_has_the_same_bits_beside_any_others(dtype: torch.dtype) -> None:
    weights = own_weights_of([16, 7, 12, 16], (130, 77, 16), dtype)
    # Rows of a buffer with room between them.
    x = torch.randn(len(SLOTS), 150).to(dtype)[:, :130]
    out = torch.randn(len(SLOTS), 90).to(torch.float32)[:, 5:82]
    together = add(out, x, weights, SLOTS)
    for threads in (2, 3):
        ops.set_num_threads(threads)
        assert_same_bits(add(out, x, weights, SLOTS), together)
    ops.set_num_threads(1)
    for row, slot in enumerate(SLOTS):
        alone = add(out[row : row + 1], x[row : row + 1], weights, [slot])
        assert_same_bits(alone[0], together[row])


def test_without_adapters_nothing_is_read() -> None:
    weights = own_weights_of([0, 0], (8, 8, 16), torch.float32)
    out = torch.randn(3, 8)
    assert_same_bits(add(out, torch.full((3, 8), NAN), weights, [-1, -1, 1]), out)
    assert_same_bits(add(out[:0], torch.empty(0, 8), weights, []), out[:0])


def test_wrong_arguments_are_refused() -> None:
    weights, x, out = own_weights_of([4, 4], (8, 6, 16), torch.float32), torch.randn(2, 8), torch.randn(2, 6)
    with pytest.raises(ValueError, match="slots: 2 is not below 2"):
        add(out, x, weights, [0, 2])
    with pytest.raises(ValueError, match="slots: -2"):
        add(out, x, weights, [0, -2])
    with pytest.raises(ValueError, match="slots: expected size 2"):
        add(out, x, weights, [0])
    with pytest.raises(ValueError, match="ranks: expected 0 to 16, got 17"):
        add(out, x, weights._replace(ranks=torch.tensor([17, 0], dtype=torch.int32)), [0, 0])
    with pytest.raises(ValueError, match="a: expected size 8 in dimension 1"):
        add(out, x, weights._replace(a=weights.a[:, 1:]), [0, 0])
    with pytest.raises(ValueError, match="multiple of 16"):
        add(out, x, weights._replace(a=weights.a[:, :, :4]), [0, 0])
    with pytest.raises(ValueError, match="b: expected size 1 in dimension 1"):
        add(out, x, weights._replace(b=weights.b.expand(2, 2, 16, 64, 1)), [0, 0])
    with pytest.raises(ValueError, match="a: an adapter's matrix must be contiguous"):
        add(out, x[:, :4], weights._replace(a=weights.a[:, ::2]), [0, 0])
    with pytest.raises(ValueError, match="b: an adapter's matrix must be contiguous"):
        add(out, x, weights._replace(b=weights.b.transpose(2, 3).contiguous().transpose(2, 3)), [0, 0])
    with pytest.raises(TypeError, match="a: dtype differs"):
        add(out, x, weights._replace(a=weights.a.bfloat16()), [0, 0])
    with pytest.raises(TypeError, match="out: expected the dtype of x or float32"):
        add(out.bfloat16(), x, weights, [0, 0])
