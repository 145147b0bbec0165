"""kv_write and paged_attention over a cache of int8 or E4M3 codes."""

from typing import Any

import pytest
import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits
from tests.worker.ops.paged import PagedBatch, Sequence, Shape, reference, widened

BF16 = torch.bfloat16
FP8, INT8 = torch.uint8, torch.int8
SHAPES = [Shape(6, 2, 24, 6), Shape(8, 2, 64), Shape(5, 1, 80, 32), Shape(4, 2, 40, 48), Shape(2, 1, 256, 8)]
VARIANTS: list[dict[str, Any]] = [{}, {"sliding_window": 37}, {"softcap": 5.0}]
LENGTHS = [1, 63, 130]


@pytest.fixture(params=[INT8, FP8], ids=["int8", "fp8"])
def codes(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def stood_for(x: Tensor, codes: torch.dtype) -> Tensor:
    """What the codes of rows x [.., D] stand for, in float32."""
    wide = x.float()
    if codes == FP8:
        return wide.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    quotient = wide.abs().amax(-1, keepdim=True) / 127
    scale = ((quotient.view(torch.int32) + 0xFFFF) & ~0xFFFF).view(torch.float32)
    return (wide * (1 / scale)).round().nan_to_num(0) * scale


def as_stored(sequence: Sequence, codes: torch.dtype) -> Sequence:
    return Sequence(sequence.q, stood_for(sequence.k, codes), stood_for(sequence.v, codes))


def stored_rows(batch: PagedBatch) -> tuple[Tensor, Tensor]:
    """Keys and values of the first sequence as bytes, uint8 [L, kv_heads, D, or D + 2 with the scale]."""
    shape, length = batch.shape, len(batch.sequences[0])
    size, blocks = shape.block_size, batch.block_tables[0, : -(-length // shape.block_size)].long()

    def rows(cache: Tensor, is_key: bool) -> Tensor:
        raw, width = cache[blocks].view(torch.uint8), cache.shape[3]
        parts = (width // 2, size, 2) if is_key else (size // 2, width, 2)
        laid_out = raw.reshape(len(blocks), shape.kv_heads, *parts)
        order = laid_out.transpose(2, 3) if is_key else laid_out.transpose(3, 4)
        in_slots = order.reshape(len(blocks), shape.kv_heads, size, width)
        return in_slots.transpose(1, 2).reshape(-1, shape.kv_heads, width)[:length]

    return rows(batch.k_cache, True), rows(batch.v_cache, False)


def read_back(shape: Shape, sequence: Sequence, codes: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values [L, kv_heads, D] of a sequence as its blocks hold them, in float32."""

    def numbers(rows: Tensor) -> Tensor:
        if codes == FP8:
            return rows.contiguous().view(torch.float8_e4m3fn).float()
        scales, units = rows[..., shape.head_dim :].contiguous().view(BF16), rows[..., : shape.head_dim]
        return (units & 127).float() * (1 - 2 * (units >> 7).float()) * scales.float()

    keys, values = stored_rows(PagedBatch(shape, [sequence], codes=codes))
    return numbers(keys), numbers(values)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_block_holds_the_nearest_codes(shape: Shape, codes: torch.dtype) -> None:
    sequence = Sequence.random(shape, 51, BF16)
    # From the least to more than the greatest that E4M3 has, and a row of nothing.
    sequence.k *= torch.logspace(-6, 3, 51).to(BF16)[:, None, None]
    sequence.v[7] = 0
    keys, values = read_back(shape, sequence, codes)
    assert torch.equal(keys, stood_for(sequence.k, codes))
    assert torch.equal(values, stood_for(sequence.v, codes))


def test_every_bfloat16_has_the_nearest_code_of_e4m3() -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(BF16)
    shape = Shape(1, 1, 256)
    rows = every.view(-1, 1, 256)
    keys, values = read_back(shape, Sequence(rows, rows, rows), FP8)
    expected = stood_for(rows, FP8)
    for stored in (keys, values):
        assert torch.equal(stored.isnan(), expected.isnan())
        assert torch.equal(stored.nan_to_num(0), expected.nan_to_num(0))


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_is_that_over_what_the_codes_stand_for(
    shape: Shape, options: dict[str, Any], codes: torch.dtype
) -> None:
    sequences = [Sequence.random(shape, length, BF16) for length in LENGTHS]
    spans = [(0, length) for length in LENGTHS]
    outputs = PagedBatch(shape, sequences, codes=codes).attend(spans, **options)
    for sequence, out in zip(sequences, outputs, strict=True):
        stored = as_stored(sequence, codes)
        rounded = Sequence(stored.q, stored.k.to(BF16), stored.v.to(BF16))
        exact = reference(widened(stored), shape.scale, **options)
        assert_as_exact_as_torch(out, reference(rounded, shape.scale, **options), exact)
        if codes == FP8:
            # All of it is exact until the products, which are the same.
            (plain,) = PagedBatch(shape, [rounded]).attend([(0, len(sequence))], **options)
            assert_same_bits(out, plain)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chunks_and_decode_give_the_bits_of_a_prefill(
    shape: Shape, options: dict[str, Any], codes: torch.dtype
) -> None:
    sequence = Sequence.random(shape, 201, BF16)
    batch = PagedBatch(shape, [sequence], codes=codes)
    (whole,) = batch.attend([(0, 201)], **options)
    for begin, end in [(0, 1), (0, 65), (64, 129), (100, 101), (63, 64), (13, 200), (200, 201)]:
        (part,) = batch.attend([(begin, end)], **options)
        assert_same_bits(part, whole[begin:end])


def test_rows_do_not_depend_on_other_requests_or_threads(codes: torch.dtype) -> None:
    shape = Shape(6, 3, 40)
    spans = [(length - 1 - length % 3, length) for length in range(20, 200, 11)] + [(0, 70), (2090, 2100)]
    sequences = [Sequence.random(shape, end, BF16) for _, end in spans]
    ops.set_num_threads(2)
    together = PagedBatch(shape, sequences, codes=codes).attend(spans)
    for i, (sequence, span, out) in enumerate(zip(sequences, spans, together, strict=True)):
        ops.set_num_threads(1 + 2 * (i % 2))
        (alone,) = PagedBatch(shape, [sequence], codes=codes).attend([span])
        assert_same_bits(alone, out)


def test_sinks_take_their_share(codes: torch.dtype) -> None:
    shape = Shape(4, 2, 24)
    sequence = Sequence.random(shape, 130, BF16)
    sinks = torch.tensor([-3.0, 0.0, 5.0, 9.0]).to(BF16)
    (out,) = PagedBatch(shape, [sequence], codes=codes).attend([(0, 130)], sinks=sinks)
    stored = as_stored(sequence, codes)
    rounded = Sequence(stored.q, stored.k.to(BF16), stored.v.to(BF16))
    exact = reference(widened(stored), shape.scale, sinks=sinks)
    assert_as_exact_as_torch(out, reference(rounded, shape.scale, sinks=sinks), exact)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("position", [7, 12])
def test_a_bad_key_or_value_spoils_no_earlier_row(position: int, bad: float, codes: torch.dtype) -> None:
    shape = Shape(4, 2, 24)
    sequence = Sequence.random(shape, 70, BF16)
    (clean,) = PagedBatch(shape, [sequence], codes=codes).attend([(0, 70)])
    sequence.k[position] = sequence.v[position] = bad
    batch = PagedBatch(shape, [sequence], codes=codes)
    for begin in (0, 3):
        (dirty,) = batch.attend([(begin, 70)])
        assert_same_bits(dirty[: position - begin], clean[begin:position])
        # The greatest number of E4M3 stands for an infinity.
        if codes == INT8 or bad != bad:
            assert dirty[position - begin :].isnan().all()


def test_positions_outside_the_window_may_hold_anything(codes: torch.dtype) -> None:
    shape = Shape(2, 2, 16)
    sequence = Sequence.random(shape, 100, BF16)
    batch = PagedBatch(shape, [sequence], codes=codes)
    (clean,) = batch.attend([(90, 100)], sliding_window=20)
    # Blocks 0 to 3 hold positions 0 to 63; the first row sees positions from 71 on.
    batch.k_cache[batch.block_tables[0, :4].long()] = 0x7F
    batch.v_cache[batch.block_tables[0, :4].long()] = -1 if codes == INT8 else 0xFF
    batch.block_tables[0, :4] = -1
    (dirty,) = batch.attend([(90, 100)], sliding_window=20)
    assert_same_bits(clean, dirty)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_tokens_that_share_a_pair_are_both_written_on_any_number_of_threads(
    threads: int, codes: torch.dtype
) -> None:
    k, v = torch.randn(2, 512, 4, 40).to(BF16).unbind()
    width = 42 if codes == INT8 else 40
    first, second = torch.zeros(2, 2, 32, 4, 16, width, dtype=codes).unbind()
    ops.kv_write(k, v, first[0], first[1], torch.arange(512))
    ops.set_num_threads(threads)
    table = torch.cat([torch.ones(512, 20), torch.zeros(512, 20)], 1)
    ids = torch.arange(512)
    ops.rotary_kv_write(k.clone(), k.clone(), v, ids, table, second[0], second[1], ids)
    assert torch.equal(first, second)


@pytest.mark.parametrize("is_key", [True, False])
def test_caches_of_two_kinds_are_refused(is_key: bool) -> None:
    k, int8, fp8 = torch.zeros(1, 2, 8, dtype=BF16), torch.zeros(1, 2, 4, 10), torch.zeros(1, 2, 4, 8)
    caches = (int8.to(INT8), fp8.to(FP8)) if is_key else (fp8.to(FP8), int8.to(INT8))
    with pytest.raises(TypeError, match="v_cache: dtype differs from the other tensors"):
        ops.kv_write(k, k, *caches, torch.zeros(1, dtype=torch.int32))


def test_codes_take_bfloat16_only_and_room_for_their_scales() -> None:
    k, one = torch.zeros(1, 2, 8), torch.zeros(1, dtype=torch.int32)
    cache = torch.zeros(1, 2, 4, 8, dtype=INT8)
    with pytest.raises(TypeError, match="k_cache: a cache of codes takes bfloat16 activations only"):
        ops.kv_write(k, k, cache, cache.clone(), one)
    with pytest.raises(ValueError, match="k_cache: expected size 10 in dimension 3, got 8"):
        ops.kv_write(k.to(BF16), k.to(BF16), cache, cache.clone(), one)
