"""paged_attention on a GPU: reference, and the same bits for a row in prefill, chunk, decode and split."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.cuda import AttentionShape
from tests.gpu.conftest import Gpu
from tests.gpu.paged import attend, paged
from tests.worker.ops.helpers import assert_as_exact_as_torch, assert_same_bits
from tests.worker.ops.paged import Sequence, Shape, reference, widened

pytestmark = pytest.mark.slow

SHAPES = [
    Shape(4, 4, 8),
    Shape(6, 2, 24, 5),
    Shape(8, 2, 64),
    Shape(5, 1, 80, 32),
    Shape(7, 1, 128),
    Shape(2, 1, 256),
    # More query heads per KV head than a tile of decode rows holds.
    Shape(20, 1, 16),
]
CASES = [
    *((shape, {}) for shape in SHAPES),
    (SHAPES[1], {"softcap": 5.0}),
    (SHAPES[2], {"sliding_window": 37}),
    (SHAPES[2], {"sliding_window": 1}),
    (SHAPES[4], {"sliding_window": 37}),
    (SHAPES[5], {"softcap": 5.0}),
]
LENGTHS = [1, 63, 130]
LONG = 2100


@pytest.fixture(autouse=True)
def _single_threaded_kernels() -> None:
    ops.set_num_threads(1)


@pytest.mark.parametrize(("shape", "options"), CASES, ids=str)
def test_prefill_matches_reference(
    gpu: Gpu, shape: Shape, options: dict[str, Any], dtype: torch.dtype
) -> None:
    sequences = [Sequence.random(shape, length, dtype) for length in LENGTHS]
    batch = paged(shape, sequences)
    outputs = attend(gpu, batch, [(0, length) for length in LENGTHS], **options)
    for sequence, out in zip(sequences, outputs, strict=True):
        exact = reference(widened(sequence), shape.scale, **options)
        assert_as_exact_as_torch(out, reference(sequence, shape.scale, **options), exact)


@pytest.mark.parametrize(("shape", "options"), CASES, ids=str)
def test_chunks_and_decode_give_the_bits_of_a_prefill(
    gpu: Gpu, shape: Shape, options: dict[str, Any], dtype: torch.dtype
) -> None:
    length = 140
    batch = paged(shape, [Sequence.random(shape, length, dtype)])
    (whole,) = attend(gpu, batch, [(0, length)], **options)
    for begin, end in [(0, 1), (64, 129), (63, 64), (139, 140), (120, 123)]:
        (part,) = attend(gpu, batch, [(begin, end)], **options)
        assert_same_bits(part, whole[begin:end])


@pytest.mark.parametrize("options", [{}, {"sliding_window": 1100}], ids=str)
@pytest.mark.parametrize("shape", [Shape(4, 2, 64), Shape(2, 1, 128), Shape(2, 1, 256)], ids=str)
def test_split_or_not_a_long_context_gives_the_same_exact_bits(
    gpu: Gpu, shape: Shape, options: dict[str, Any]
) -> None:
    sequence, begin = Sequence.random(shape, LONG, torch.bfloat16), 2030
    batch = paged(shape, [sequence])
    (whole,) = attend(gpu, batch, [(begin, LONG)], **options)
    torchs = reference(sequence, shape.scale, begin, **options)
    exact = reference(widened(sequence), shape.scale, begin, **options)
    assert_as_exact_as_torch(whole, torchs, exact)
    # Room for nothing, for one segment only, and for all.
    for partial_rows in (0, shape.heads, 4096):
        for first, end in [(LONG - 1, LONG), (2047, 2049), (2060, 2063)]:
            (part,) = attend(gpu, batch, [(first, end)], partial_rows, **options)
            assert_same_bits(part, whole[first - begin : end - begin])


@pytest.mark.parametrize(
    ("shape", "window"), [(Shape(4, 2, 64), 0), (Shape(4, 2, 64), 128), (Shape(20, 1, 16), 0)], ids=str
)
def test_sinks_take_their_share_of_each_row(gpu: Gpu, shape: Shape, window: int, dtype: torch.dtype) -> None:
    sequence, length, begin = Sequence.random(shape, 600, dtype), 600, 590
    # From no share at all to nearly all of it.
    sinks = torch.linspace(-90, 9, shape.heads).to(dtype)
    options: dict[str, Any] = {"sliding_window": window, "sinks": sinks}
    batch = paged(shape, [sequence])
    (whole,) = attend(gpu, batch, [(begin, length)], **options)
    torchs = reference(sequence, shape.scale, begin, **options)
    assert_as_exact_as_torch(whole, torchs, reference(widened(sequence), shape.scale, begin, **options))
    # Once per row, whether the sum over its segments is split or not.
    for partial_rows in (0, 4096):
        for first, end in [(length - 1, length), (begin, begin + 3)]:
            (part,) = attend(gpu, batch, [(first, end)], partial_rows, **options)
            assert_same_bits(part, whole[first - begin : end - begin])


def test_long_float32_context_matches_reference(gpu: Gpu) -> None:
    shape = Shape(2, 1, 16)
    sequence = Sequence.random(shape, LONG, torch.float32)
    (out,) = attend(gpu, paged(shape, [sequence]), [(LONG - 3, LONG)])
    exact = reference(widened(sequence), shape.scale, LONG - 3)
    assert_as_exact_as_torch(out, reference(sequence, shape.scale, LONG - 3), exact)


def test_rows_do_not_depend_on_other_requests(gpu: Gpu, dtype: torch.dtype) -> None:
    shape = Shape(6, 2, 32, 7)
    spans = [(89, 90), (0, 1), (0, 33), (40, 150), (63, 64)]
    sequences = [Sequence.random(shape, end, dtype) for _, end in spans]
    together = attend(gpu, paged(shape, sequences), spans)
    for sequence, span, out in zip(sequences, spans, together, strict=True):
        (alone,) = attend(gpu, paged(shape, [sequence]), [span])
        assert_same_bits(alone, out)


@pytest.mark.parametrize("seed", range(6))
def test_random_steps_match_reference(gpu: Gpu, seed: int) -> None:
    draw = random.Random(seed)
    group = draw.choice([1, 2, 3, 8])
    shape = Shape(2 * group, 2, draw.choice([40, 64, 96]), draw.choice([1, 5, 16]))
    ends = [draw.randint(1, 90) for _ in range(draw.randint(1, 6))]
    spans = [(draw.choice([end - 1, draw.randrange(end)]), end) for end in ends]
    window = draw.choice([0, 0, draw.randint(1, 80)])
    sequences = [Sequence.random(shape, end, torch.float16) for end in ends]
    outputs = attend(gpu, paged(shape, sequences), spans, sliding_window=window)
    for sequence, (begin, _), out in zip(sequences, spans, outputs, strict=True):
        exact = reference(widened(sequence), shape.scale, begin, window)
        assert_as_exact_as_torch(out, reference(sequence, shape.scale, begin, window), exact)


def test_positions_outside_the_window_may_hold_anything(gpu: Gpu, dtype: torch.dtype) -> None:
    shape = Shape(2, 2, 16)
    batch = paged(shape, [Sequence.random(shape, 100, dtype)])
    (clean,) = attend(gpu, batch, [(90, 100)], sliding_window=20)
    # Blocks 0 to 3 hold positions 0 to 63; the first row sees positions from 71 on.
    batch.k_cache[batch.block_tables[0, :4].long()] = float("nan")
    batch.v_cache[batch.block_tables[0, :4].long()] = float("inf")
    batch.block_tables[0, :4] = -1
    (dirty,) = attend(gpu, batch, [(90, 100)], sliding_window=20)
    assert_same_bits(clean, dirty)


def test_a_nan_query_spoils_its_own_row_only(gpu: Gpu, dtype: torch.dtype) -> None:
    shape = Shape(4, 2, 16)
    sequence = Sequence.random(shape, 20, dtype)
    (clean,) = attend(gpu, paged(shape, [sequence]), [(0, 20)])
    sequence.q[7, 1, 3] = float("nan")
    (dirty,) = attend(gpu, paged(shape, [sequence]), [(0, 20)])
    assert dirty[7, 1].isnan().all()
    clean[7, 1] = dirty[7, 1] = 0
    assert_same_bits(clean, dirty)


def test_a_block_outside_the_cache_is_not_read(gpu: Gpu, dtype: torch.dtype) -> None:
    shape = Shape(2, 1, 16)
    batch = paged(shape, [Sequence.random(shape, 40, dtype)])
    batch.block_tables[0, 1] = 1 << 30
    (out,) = attend(gpu, batch, [(39, 40)])
    assert out.isfinite().all()


def test_a_thread_block_finds_its_shared_memory(gpu: Gpu) -> None:
    taken = [gpu.ops.attention_shared_bytes(head_dim) >> 10 for head_dim in (8, 64, 128, 256)]
    # As docs/gpu.md has it. An A100 gives 163 KiB, GPUs of compute capability 8.6, 8.9 and 12.x give 99.
    assert taken == [59, 59, 111, 116]
    assert gpu.ops.shared_bytes_limit(0) >> 10 >= 163 or not torch.cuda.is_available()


def test_arguments_are_checked(gpu: Gpu) -> None:
    batch = paged(Shape(4, 2, 12), [Sequence.random(Shape(4, 2, 12), 5, torch.bfloat16)])
    with pytest.raises(ValueError, match="q: head size must be a multiple of 8"):
        attend(gpu, batch, [(0, 5)])
    with pytest.raises(ValueError, match="out of range"):
        gpu.ops.attention_plan_size(1, 1, 4, 2, 64, 0)
    partials = torch.empty(2 * 68 + 1, device=gpu.device)[1:].view(2, 68)
    with pytest.raises(ValueError, match="partials: rows must begin at multiples of 8 bytes"):
        gpu.ops.plan_attention(
            torch.empty(100, dtype=torch.int32, device=gpu.device),
            partials,
            torch.tensor([0, 1], dtype=torch.int32, device=gpu.device),
            torch.tensor([1], dtype=torch.int32, device=gpu.device),
            AttentionShape(1, 2, 2, 16),
        )
