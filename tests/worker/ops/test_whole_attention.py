"""WholeOps.attend: reference, and the same bits for a sequence in every batch, on any number of threads."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from splitserve.worker.ops.cpu import ops
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits


class Shape(NamedTuple):
    """Query heads, KV heads, head size."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5


SHAPES = [
    Shape(3, 3, 8),
    Shape(6, 2, 24),
    Shape(2, 2, 32),
    Shape(4, 4, 64),
    Shape(5, 1, 80),
    Shape(2, 1, 256),
]
LENGTHS = [1, 2, 15, 63, 64, 65, 130]
VARIANTS = [{}, {"reach": 1}, {"reach": 20}, {"reach": 64}, {"reach": 1000}]
# Longer than what one task computes.
LONG = 1100


def draw(shape: Shape, num_tokens: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    heads = (shape.heads, shape.kv_heads, shape.kv_heads)
    return tuple(torch.randn(num_tokens, count, shape.head_dim).to(dtype) for count in heads)


def attend(
    shape: Shape, qkv: tuple[torch.Tensor, ...], lengths: list[int], **options: Any
) -> list[torch.Tensor]:
    """The attention output of each sequence of a batch."""
    q, k, v = qkv
    out = torch.full_like(q, float("nan"))
    ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    ops.whole.attend(out, q, k, v, ends, shape.scale, **options)
    return list(out.split(lengths))


def reference(shape: Shape, qkv: tuple[torch.Tensor, ...], reach: int = 0) -> torch.Tensor:
    """Torch's result in the dtype of the inputs, for one sequence."""
    q, k, v = (x.transpose(0, 1) for x in qkv)
    group = shape.heads // shape.kv_heads
    k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    scores = (q @ k.transpose(1, 2)) * shape.scale
    if reach:
        position = torch.arange(q.shape[1])
        far = (position[:, None] - position).abs() > reach
        scores = scores.masked_fill(far, -torch.inf)
    return (scores.softmax(dim=-1) @ v).transpose(0, 1)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_matches_the_reference(shape: Shape, options: dict[str, Any], dtype: torch.dtype) -> None:
    qkv = draw(shape, sum(LENGTHS), dtype)
    outputs = attend(shape, qkv, LENGTHS, **options)
    parts = zip(*(x.split(LENGTHS) for x in qkv), strict=True)
    for out, part in zip(outputs, parts, strict=True):
        exact = reference(shape, tuple(x.double() for x in part), **options)
        assert_as_exact_as_torch(out, reference(shape, part, **options), exact)


@pytest.mark.parametrize("options", [{}, {"reach": 300}], ids=str)
def test_long_sequences_match_the_reference(options: dict[str, Any], dtype: torch.dtype) -> None:
    shape = Shape(2, 1, 16)
    qkv = draw(shape, LONG, dtype)
    (out,) = attend(shape, qkv, [LONG], **options)
    exact = reference(shape, tuple(x.double() for x in qkv), **options)
    assert_as_exact_as_torch(out, reference(shape, qkv, **options), exact)


@pytest.mark.parametrize("options", [{}, {"reach": 20}], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_sequence_has_the_same_bits_in_every_batch(
    shape: Shape, options: dict[str, Any], dtype: torch.dtype
) -> None:
    lengths = [70, 1, 33, 501, 64]
    qkv = draw(shape, sum(lengths), dtype)
    ops.set_num_threads(1)
    together = attend(shape, qkv, lengths, **options)
    for threads in (1, 2, 5):
        ops.set_num_threads(threads)
        for out, part in zip(together, zip(*(x.split(lengths) for x in qkv), strict=True), strict=True):
            (alone,) = attend(shape, part, [len(out)], **options)
            assert_same_bits(alone, out)
        for out, again in zip(together, attend(shape, qkv, lengths, **options), strict=True):
            assert_same_bits(again, out)


def test_what_is_not_seen_changes_no_bit(dtype: torch.dtype) -> None:
    shape, length, reach = Shape(2, 2, 24), 150, 30
    qkv = draw(shape, length, dtype)
    (clean,) = attend(shape, qkv, [length], reach=reach)
    for x in qkv[1:]:
        x[: length - 1 - 60] = float("nan")
    (dirty,) = attend(shape, qkv, [length], reach=reach)
    # Tokens from 119 on see none of the first 89.
    assert_same_bits(dirty[119:], clean[119:])


def test_a_sequence_is_not_spoiled_by_its_neighbours(dtype: torch.dtype) -> None:
    shape, lengths = Shape(2, 2, 40), [50, 70, 3]
    qkv = draw(shape, sum(lengths), dtype)
    clean = attend(shape, qkv, lengths)
    for x in qkv:
        x[:50] = float("nan")
    dirty = attend(shape, qkv, lengths)
    assert dirty[0].isnan().all()
    for one, other in zip(dirty[1:], clean[1:], strict=True):
        assert_same_bits(one, other)


def test_it_reads_slices_of_a_fused_buffer(dtype: torch.dtype) -> None:
    shape, lengths = Shape(4, 4, 16), [20, 7]
    qkv = draw(shape, 27, dtype)
    fused = torch.cat(qkv, dim=1)
    slices = (fused[:, :4], fused[:, 4:8], fused[:, 8:])
    for one, other in zip(attend(shape, slices, lengths), attend(shape, qkv, lengths), strict=True):
        assert_same_bits(one, other)


def test_there_may_be_no_sequence_and_empty_ones(dtype: torch.dtype) -> None:
    shape = Shape(2, 2, 16)
    assert attend(shape, draw(shape, 0, dtype), []) == []
    qkv = draw(shape, 9, dtype)
    first, _, last = attend(shape, qkv, [4, 0, 5])
    assert not first.isnan().any()
    assert not last.isnan().any()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"ends": [0, 4]}, "cu_seqlens: must run from 0 to the 5 rows"),
        ({"ends": [1, 5]}, "cu_seqlens: must run from 0"),
        ({"ends": [0, 4, 3, 5]}, "cu_seqlens: decreases at sequence 1"),
        ({"ends": []}, "cu_seqlens: is empty"),
        ({"scale": 0.0}, "scale: must be positive"),
        ({"reach": -1}, "reach: negative"),
        ({"k": torch.zeros(5, 3, 16)}, "4 heads are not a multiple of 3"),
        ({"k": torch.zeros(4, 4, 16)}, "k: expected size 5"),
        ({"v": torch.zeros(5, 2, 16)}, "v: expected size 4"),
        ({"q": torch.zeros(5, 4, 12)}, "head size must be a multiple of 8"),
    ],
)
def test_wrong_arguments_are_refused(changes: dict[str, Any], text: str) -> None:
    arguments = {name: torch.zeros(5, 4, 16) for name in ("out", "q", "k", "v")}
    ends = torch.tensor(changes.get("ends", [0, 5]), dtype=torch.int32)
    others = {name: value for name, value in changes.items() if name != "ends"}
    with pytest.raises(ValueError, match=text):
        ops.whole.attend(**{**arguments, "cu_seqlens": ends, "scale": 1.0, **others})


def test_other_dtypes_are_refused() -> None:
    x = torch.zeros(5, 4, 16)
    with pytest.raises(TypeError, match="k: dtype differs"):
        ops.whole.attend(x, x, x.bfloat16(), x, torch.tensor([0, 5], dtype=torch.int32), 1.0)
