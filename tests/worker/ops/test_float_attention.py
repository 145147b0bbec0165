"""Attention that multiplies floats in place of pairs of bfloat16: with the bits of pairs in all its forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops
from tests.worker.ops import test_latents, test_whole_attention
from tests.worker.ops.helpers import assert_same_bits
from tests.worker.ops.paged import PagedBatch, Sequence, Shape
from tests.worker.ops.test_coded_attention import FP8, INT8

BF16 = torch.bfloat16
# Products of the second ones are denormal, and so are some of their sums; of the third ones some are
# themselves, and what weighted values add up to is not.
EXPONENTS = [0, -66, -124]
SHAPES = [
    Shape(3, 3, 8),
    Shape(9, 3, 64),
    Shape(16, 1, 80, block_size=10),
    Shape(13, 1, 24, block_size=6),
    Shape(2, 2, 256),
]


@pytest.fixture(autouse=True)
def _is_for_this_processor(isa: str) -> Iterator[None]:
    if isa != "avx512_bf16" or not ops.multiplies_floats():
        pytest.skip("for processors that multiply floats faster")
    yield
    ops.set_multiplies_floats(True)


def assert_same_by_pairs(attend: Callable[[], list[Tensor]]) -> None:
    by_floats = torch.cat([out.flatten() for out in attend()])
    ops.set_multiplies_floats(False)
    by_pairs = torch.cat([out.flatten() for out in attend()])
    assert by_pairs.isfinite().all()
    assert_same_bits(by_floats, by_pairs)


def scaled(x: Tensor, exponent: int) -> Tensor:
    return (x.double() * 2.0**exponent).to(BF16)


def draw(shape: Shape, length: int, exponent: int, which: str) -> Sequence:
    """A sequence whose scores, values or both are small."""
    drawn = Sequence.random(shape, length, BF16)
    scores, values = (exponent if which in (part, "both") else 0 for part in ("scores", "values"))
    return Sequence(scaled(drawn.q, scores), scaled(drawn.k, scores), scaled(drawn.v, values))


@pytest.mark.parametrize("which", ["scores", "values", "both"])
@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("options", [{}, {"sliding_window": 37}, {"softcap": 5.0}], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_paged_attention(shape: Shape, options: dict[str, Any], exponent: int, which: str) -> None:
    batch = PagedBatch(shape, [draw(shape, n, exponent, which) for n in (1, 63, 130, 131, 132)])
    assert_same_by_pairs(lambda: batch.attend([(0, 1), (0, 63), (0, 130), (129, 131), (131, 132)], **options))


@pytest.mark.parametrize("codes", [INT8, FP8], ids=["int8", "fp8"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_paged_attention_over_codes(shape: Shape, codes: torch.dtype) -> None:
    batch = PagedBatch(shape, [Sequence.random(shape, n, BF16) for n in (63, 130)], codes=codes)
    assert_same_by_pairs(lambda: batch.attend([(0, 63), (100, 130)]))


def test_paged_attention_over_several_segments() -> None:
    shape = Shape(6, 2, 32)
    batch = PagedBatch(shape, [Sequence.random(shape, 2100, BF16)])
    assert_same_by_pairs(lambda: batch.attend([(2000, 2100)]))
    ops.set_multiplies_floats(True)
    ops.set_num_threads(2)
    assert_same_by_pairs(lambda: batch.attend([(2099, 2100)]))


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("reach", [0, 1, 20])
@pytest.mark.parametrize("shape", test_whole_attention.SHAPES, ids=str)
def test_attention_of_whole_sequences(shape: test_whole_attention.Shape, reach: int, exponent: int) -> None:
    lengths = [*test_whole_attention.LENGTHS, 300]
    q, k, v = test_whole_attention.draw(shape, sum(lengths), BF16)
    small = (scaled(q, exponent), scaled(k, exponent), scaled(v, exponent))
    assert_same_by_pairs(lambda: test_whole_attention.attend(shape, small, lengths, reach=reach))


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("shape", test_latents.SHAPES, ids=str)
def test_latent_attention(shape: test_latents.Shape, exponent: int) -> None:
    batch = test_latents.Latents(shape, [1, 63, 130, 131], BF16)
    batch.q = [scaled(q, exponent) for q in batch.q]
    for i, rows in enumerate(batch.rows):
        batch.put(i, scaled(rows, exponent))
    assert_same_by_pairs(lambda: batch.attend((0, 1), (0, 63), (0, 130), (130, 131)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("position", [7, 12, 63])
def test_what_a_row_does_not_see_may_be_anything(position: int, value: float) -> None:
    shape, latents = Shape(9, 3, 64), test_latents.Latents(test_latents.NARROW, [80], BF16)
    sequence = Sequence.random(shape, 80, BF16)
    sequence.k[position] = sequence.v[position] = value
    batch = PagedBatch(shape, [sequence])
    latents.rows[0][position] = value
    latents.put(0, latents.rows[0])
    assert_same_by_pairs(lambda: [batch.attend([(0, 80)])[0][:position]])
    ops.set_multiplies_floats(True)
    assert_same_by_pairs(lambda: [latents.attend((0, 80))[0][:position]])
