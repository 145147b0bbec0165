"""Attention within whole sequences on a GPU, and rotation without a cache: references, and bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.gpu.conftest import Gpu
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits
from tests.worker.ops.test_rotate_heads import MAX_POS, rotated, table
from tests.worker.ops.test_whole_attention import Shape, draw, reference

SHAPES = [Shape(2, 2, 8), Shape(4, 2, 24), Shape(3, 1, 80), Shape(2, 1, 256)]
CASES = [
    *((shape, {}) for shape in SHAPES),
    (SHAPES[0], {"reach": 20}),
    (SHAPES[1], {"reach": 1}),
    (SHAPES[1], {"reach": 1000}),
]
LENGTHS = [1, 16, 65, 90]
# Of more than one segment.
LONG = 300


def attend(
    gpu: Gpu, shape: Shape, qkv: tuple[torch.Tensor, ...], lengths: list[int], **options: Any
) -> list[torch.Tensor]:
    """The attention output of each sequence of a batch, on the CPU; the inputs are slices of one buffer."""
    fused = torch.cat(qkv, dim=1).to(gpu.device)
    q, k, v = fused.split([x.shape[1] for x in qkv], dim=1)
    out = gpu.empty_like(torch.empty_like(qkv[0], device=gpu.device))
    ends = torch.tensor([0, *lengths]).cumsum(0).int().to(gpu.device)
    gpu.ops.whole.attend(out, q, k, v, ends, shape.scale, **options)
    return list(out.cpu().split(lengths))


@pytest.mark.parametrize(("shape", "options"), CASES, ids=str)
def test_it_matches_the_reference(
    gpu: Gpu, shape: Shape, options: dict[str, Any], dtype: torch.dtype
) -> None:
    qkv = draw(shape, sum(LENGTHS), dtype)
    outputs = attend(gpu, shape, qkv, LENGTHS, **options)
    for out, part in zip(outputs, zip(*(x.split(LENGTHS) for x in qkv), strict=True), strict=True):
        exact = reference(shape, tuple(x.double() for x in part), **options)
        assert_as_exact_as_torch(out, reference(shape, part, **options), exact)


@pytest.mark.parametrize("options", [{}, {"reach": 200}], ids=str)
def test_long_sequences_match_the_reference(gpu: Gpu, options: dict[str, Any], dtype: torch.dtype) -> None:
    shape = Shape(1, 1, 16)
    qkv = draw(shape, LONG, dtype)
    (out,) = attend(gpu, shape, qkv, [LONG], **options)
    exact = reference(shape, tuple(x.double() for x in qkv), **options)
    assert_as_exact_as_torch(out, reference(shape, qkv, **options), exact)


@pytest.mark.parametrize("options", [{}, {"reach": 20}], ids=str)
def test_a_sequence_has_the_same_bits_in_every_batch(
    gpu: Gpu, options: dict[str, Any], dtype: torch.dtype
) -> None:
    # More sequences than a thread block has threads, some of them empty.
    shape, lengths = Shape(2, 1, 40), [70, 0, *[1, 3] * 70, 130, 64, 0, 5]
    qkv = draw(shape, sum(lengths), dtype)
    together = attend(gpu, shape, qkv, lengths, **options)
    parts = list(zip(*(x.split(lengths) for x in qkv), strict=True))
    for i in (0, 2, 3, 141, 142, 143, 145):
        (alone,) = attend(gpu, shape, parts[i], [lengths[i]], **options)
        assert_same_bits(alone, together[i])
    assert not torch.cat(together).isnan().any()


def test_a_sequence_is_not_spoiled_by_its_neighbours(gpu: Gpu, dtype: torch.dtype) -> None:
    shape, lengths = Shape(2, 2, 40), [50, 70, 3]
    qkv = draw(shape, sum(lengths), dtype)
    clean = attend(gpu, shape, qkv, lengths)
    for x in qkv:
        x[:50] = float("nan")
    dirty = attend(gpu, shape, qkv, lengths)
    assert dirty[0].isnan().all()
    for one, other in zip(dirty[1:], clean[1:], strict=True):
        assert_same_bits(one, other)


def test_there_may_be_no_sequence(gpu: Gpu, dtype: torch.dtype) -> None:
    shape = Shape(2, 2, 16)
    assert attend(gpu, shape, draw(shape, 0, dtype), []) == []


def test_rows_that_cannot_be_copied_at_once_are_refused(gpu: Gpu) -> None:
    x = torch.zeros(5, 4, 20, dtype=torch.bfloat16, device=gpu.device)[..., :16]
    ends = torch.tensor([0, 5], dtype=torch.int32, device=gpu.device)
    with pytest.raises(ValueError, match="q: rows must begin at multiples of 16 bytes"):
        gpu.ops.whole.attend(x, x, x, x, ends, 1.0)
    y = torch.zeros(5, 4, 16, dtype=torch.bfloat16, device=gpu.device)
    wide = torch.zeros(5, 4, 24, dtype=torch.bfloat16, device=gpu.device)[..., :16]
    with pytest.raises(ValueError, match="v: strides differ from k"):
        gpu.ops.whole.attend(y, y, y, wide, ends, 1.0)


# The last of these sizes has halves that do not begin at multiples of 16 bytes.
@pytest.mark.parametrize(("head_dim", "rot_dim"), [(64, 64), (40, 32), (40, 20)])
def test_rotation_matches_the_reference(gpu: Gpu, head_dim: int, rot_dim: int, dtype: torch.dtype) -> None:
    fused = gpu.randn(9, 12, head_dim, dtype=dtype)
    before, positions = fused.cpu().clone(), torch.randint(0, MAX_POS, (9,), dtype=torch.int32)
    cos_sin = table(rot_dim)
    gpu.ops.whole.rotate(fused[:, 3:8], positions.to(gpu.device), cos_sin.to(gpu.device))
    x, after = before[:, 3:8], fused.cpu()
    exact = rotated(x.double(), positions, cos_sin.double())
    assert_as_exact_as_torch(after[:, 3:8], rotated(x.float(), positions, cos_sin).to(dtype), exact)
    for untouched in (slice(0, 3), slice(8, 12)):
        assert_same_bits(after[:, untouched], before[:, untouched])


def test_a_position_outside_the_table_is_no_number(gpu: Gpu, dtype: torch.dtype) -> None:
    x, cos_sin = gpu.randn(3, 2, 16, dtype=dtype), table(16).to(gpu.device)
    alone = x.clone()
    positions = torch.tensor([4, MAX_POS, -1], device=gpu.device)
    gpu.ops.whole.rotate(x, positions, cos_sin)
    gpu.ops.whole.rotate(alone[:1], positions[:1], cos_sin)
    assert x[1:].isnan().all()
    assert_same_bits(x[0].cpu(), alone[0].cpu())
