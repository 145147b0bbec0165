"""paged_attention: reference, and the same bits for a row in prefill, chunk and decode."""

from typing import Any

import pytest
import torch

from splitserve.worker.ops.cpu import ops
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits
from tests.worker.ops.paged import PagedBatch, Sequence, Shape, reference, widened

SHAPES = [
    Shape(4, 4, 8),
    Shape(6, 2, 24, 6),
    Shape(8, 2, 64),
    Shape(5, 1, 80, 32),
    Shape(4, 2, 40, 48),
    Shape(60, 1, 16),
    Shape(7, 1, 128),
    Shape(2, 1, 256),
]
VARIANTS = [{}, {"sliding_window": 37}, {"softcap": 5.0}, {"sliding_window": 1}]
LENGTHS = [1, 63, 130]
# Past two segments, so that partial results are merged.
LONG = 2100


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_prefill_matches_reference(shape: Shape, options: dict[str, Any], dtype: torch.dtype) -> None:
    sequences = [Sequence.random(shape, length, dtype) for length in LENGTHS]
    outputs = PagedBatch(shape, sequences).attend([(0, length) for length in LENGTHS], **options)
    for sequence, out in zip(sequences, outputs, strict=True):
        exact = reference(widened(sequence), shape.scale, **options)
        assert_as_exact_as_torch(out, reference(sequence, shape.scale, **options), exact)


@pytest.mark.parametrize("options", [{}, {"sliding_window": 1500}], ids=str)
def test_long_context_matches_reference(options: dict[str, Any], dtype: torch.dtype) -> None:
    shape = Shape(2, 1, 16)
    sequence = Sequence.random(shape, LONG, dtype)
    begin = LONG - 20
    (out,) = PagedBatch(shape, [sequence]).attend([(begin, LONG)], **options)
    exact = reference(widened(sequence), shape.scale, begin, **options)
    assert_as_exact_as_torch(out, reference(sequence, shape.scale, begin, **options), exact)


@pytest.mark.parametrize("sliding_window", [0, 37])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sinks_take_their_share_of_each_row(shape: Shape, sliding_window: int, dtype: torch.dtype) -> None:
    """From hardly any to all of it, whose score no exponential could hold alone."""
    sinks = torch.linspace(-100, 200, shape.heads).to(dtype)
    sequence = Sequence.random(shape, 130, dtype)
    options: dict[str, Any] = {"sliding_window": sliding_window, "sinks": sinks}
    batch = PagedBatch(shape, [sequence])
    (whole,) = batch.attend([(0, 130)], **options)
    exact = reference(widened(sequence), shape.scale, **options)
    assert_as_exact_as_torch(whole, reference(sequence, shape.scale, **options), exact)
    for begin, end in [(0, 1), (63, 64), (13, 120), (129, 130)]:
        (part,) = batch.attend([(begin, end)], **options)
        assert_same_bits(part, whole[begin:end])


def test_sinks_of_a_long_context_do_not_depend_on_how_it_is_split(dtype: torch.dtype) -> None:
    shape = Shape(4, 2, 24)
    sequence = Sequence.random(shape, LONG, dtype)
    batch, sinks = PagedBatch(shape, [sequence]), torch.tensor([-3.0, 0.0, 5.0, 9.0]).to(dtype)
    (whole,) = batch.attend([(0, LONG)], sinks=sinks)
    begin = LONG - 1
    exact = reference(widened(sequence), shape.scale, begin, sinks=sinks)
    plain = reference(sequence, shape.scale, begin, sinks=sinks)
    assert_as_exact_as_torch(whole[begin:], plain, exact)
    for threads in (1, 2, 7):
        ops.set_num_threads(threads)
        (part,) = batch.attend([(begin, LONG)], sinks=sinks)
        assert_same_bits(part, whole[begin:])


@pytest.mark.parametrize("steepness", [4.0, -4.0])
def test_scores_that_rise_or_fall_along_the_context(steepness: float, dtype: torch.dtype) -> None:
    """Each chunk's scores leave those before it far behind, or are left behind by them."""
    shape, length = Shape(6, 2, 64), 700
    sequence = Sequence.random(shape, length, dtype)
    sequence.q[:] = sequence.q.abs()
    sequence.k[:] = sequence.k.abs() * torch.linspace(0, steepness, length).to(dtype)[:, None, None]
    batch = PagedBatch(shape, [sequence])
    (whole,) = batch.attend([(0, length)])
    exact = reference(widened(sequence), shape.scale)
    assert_as_exact_as_torch(whole, reference(sequence, shape.scale), exact)
    for begin, end in [(0, 1), (127, 130), (400, 413), (699, 700)]:
        (part,) = batch.attend([(begin, end)])
        assert_same_bits(part, whole[begin:end])


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chunks_and_decode_give_the_bits_of_a_prefill(
    shape: Shape, options: dict[str, Any], dtype: torch.dtype
) -> None:
    length = 201
    sequence = Sequence.random(shape, length, dtype)
    batch = PagedBatch(shape, [sequence])
    (whole,) = batch.attend([(0, length)], **options)
    for begin, end in [(0, 1), (0, 65), (64, 129), (100, 101), (63, 64), (13, 200), (200, 201)]:
        (part,) = batch.attend([(begin, end)], **options)
        assert_same_bits(part, whole[begin:end])


@pytest.mark.parametrize("options", [{}, {"sliding_window": 1100}], ids=str)
def test_splitting_a_long_context_over_threads_does_not_change_bits(
    options: dict[str, Any], dtype: torch.dtype
) -> None:
    shape = Shape(4, 2, 24)
    sequence = Sequence.random(shape, LONG, dtype)
    batch = PagedBatch(shape, [sequence])
    ops.set_num_threads(1)
    (whole,) = batch.attend([(0, LONG)], **options)
    for threads in (1, 2, 7):
        ops.set_num_threads(threads)
        for begin, end in [(1023, 1026), (LONG - 1, LONG), (2040, 2060)]:
            (part,) = batch.attend([(begin, end)], **options)
            assert_same_bits(part, whole[begin:end])


def test_rows_do_not_depend_on_other_requests(dtype: torch.dtype) -> None:
    shape = Shape(6, 2, 32, 10)
    lengths = [90, 1, 33, 150, 64]
    spans = [(89, 90), (0, 1), (0, 33), (40, 150), (63, 64)]
    sequences = [Sequence.random(shape, length, dtype) for length in lengths]
    ops.set_num_threads(2)
    together = PagedBatch(shape, sequences).attend(spans)
    ops.set_num_threads(1)
    for sequence, span, out in zip(sequences, spans, together, strict=True):
        (alone,) = PagedBatch(shape, [sequence]).attend([span])
        assert_same_bits(alone, out)


@pytest.mark.parametrize("options", [{}, {"sliding_window": 70}], ids=str)
@pytest.mark.parametrize("block_size", [16, 10])
def test_rows_do_not_depend_on_the_kv_heads_computed_with_them(
    block_size: int, options: dict[str, Any], dtype: torch.dtype
) -> None:
    """Few rows of many requests share tiles between KV heads, those of one request do not."""
    shape = Shape(6, 3, 40, block_size)
    spans = [(length - 1 - length % 3, length) for length in range(20, 200, 11)] + [(0, 70)]
    sequences = [Sequence.random(shape, end, dtype) for _, end in spans]
    together = PagedBatch(shape, sequences).attend(spans, **options)
    for sequence, span, out in zip(sequences, spans, together, strict=True):
        (alone,) = PagedBatch(shape, [sequence]).attend([span], **options)
        assert_same_bits(alone, out)


def test_positions_outside_the_window_may_hold_anything(dtype: torch.dtype) -> None:
    shape = Shape(2, 2, 16)
    sequence = Sequence.random(shape, 100, dtype)
    batch = PagedBatch(shape, [sequence])
    (clean,) = batch.attend([(90, 100)], sliding_window=20)
    # Blocks 0 to 3 hold positions 0 to 63; the first row sees positions from 71 on.
    batch.k_cache[batch.block_tables[0, :4].long()] = float("nan")
    batch.v_cache[batch.block_tables[0, :4].long()] = float("inf")
    batch.block_tables[0, :4] = -1
    (dirty,) = batch.attend([(90, 100)], sliding_window=20)
    assert_same_bits(clean, dirty)


def test_reads_queries_from_a_slice_of_a_fused_buffer(dtype: torch.dtype) -> None:
    shape = Shape(4, 2, 16)
    sequence = Sequence.random(shape, 20, dtype)
    batch = PagedBatch(shape, [sequence])
    (dense,) = batch.attend([(0, 20)])
    fused = torch.cat([sequence.q, sequence.k, sequence.v], dim=1)
    sequence.q = fused[:, :4]
    out = torch.empty(20, 4, 16, dtype=dtype)
    ops.paged_attention(
        out,
        fused[:, :4],
        batch.k_cache,
        batch.v_cache,
        batch.block_tables,
        torch.tensor([0, 20], dtype=torch.int32),
        torch.tensor([20], dtype=torch.int32),
        shape.scale,
    )
    assert_same_bits(out, dense)


def test_a_nan_query_spoils_its_own_row_only(dtype: torch.dtype) -> None:
    shape = Shape(4, 2, 16)
    sequence = Sequence.random(shape, 20, dtype)
    (clean,) = PagedBatch(shape, [sequence]).attend([(0, 20)])
    sequence.q[7, 1, 3] = float("nan")
    (dirty,) = PagedBatch(shape, [sequence]).attend([(0, 20)])
    assert dirty[7, 1].isnan().all()
    clean[7, 1] = dirty[7, 1] = 0
    assert_same_bits(clean, dirty)


@pytest.mark.parametrize("position", [7, 12])
def test_a_nan_key_or_value_spoils_no_earlier_row(position: int, dtype: torch.dtype) -> None:
    shape = Shape(4, 2, 24)
    sequence = Sequence.random(shape, 70, dtype)
    (clean,) = PagedBatch(shape, [sequence]).attend([(0, 70)])
    sequence.k[position] = sequence.v[position] = float("nan")
    batch = PagedBatch(shape, [sequence])
    for begin in (0, 3):
        (dirty,) = batch.attend([(begin, 70)])
        assert_same_bits(dirty[: position - begin], clean[begin:position])
        assert dirty[position - begin :].isnan().all()


def test_what_is_rounded_to_zero_has_the_same_sign_beside_later_positions(dtype: torch.dtype) -> None:
    """Where denormals are made zero: a negative sum, then a negative product in the same register."""
    shape, tiny = Shape(2, 1, 16), torch.finfo(torch.bfloat16).tiny
    sequence = Sequence.random(shape, 64, dtype)
    sequence.q[:], sequence.k[:], sequence.v[:] = 1, 0, 0
    sequence.k[48:50] = -1
    sequence.v[0], sequence.v[32], sequence.v[48:50], sequence.v[50:] = 1.5 * tiny, -1.625 * tiny, -tiny, -1
    batch = PagedBatch(shape, [sequence])
    (whole,) = batch.attend([(0, 64)])
    (alone,) = batch.attend([(49, 50)])
    assert_same_bits(alone[0], whole[49])


def test_an_infinite_value_reaches_only_rows_that_see_it(dtype: torch.dtype) -> None:
    """Among rows of one tile, with a window that some of them have left."""
    shape = Shape(8, 1, 40)
    sequence = Sequence.random(shape, 90, dtype)
    (clean,) = PagedBatch(shape, [sequence]).attend([(0, 90)], sliding_window=20)
    sequence.v[50] = float("inf")
    (dirty,) = PagedBatch(shape, [sequence]).attend([(0, 90)], sliding_window=20)
    assert_same_bits(dirty[:50], clean[:50])
    assert_same_bits(dirty[70:], clean[70:])
    assert not dirty[50:70].isfinite().any()
