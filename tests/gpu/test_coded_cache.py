"""A KV cache of codes on a GPU: those of the CPU, and attention with the bits of that over their numbers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from splitserve.engine_core.sequence_sampling import SequenceSampling
from tests.gpu.conftest import Gpu
from tests.gpu.paged import attend, paged, paged_codes
from tests.gpu.whole_worker import NUM_BLOCKS, NUM_HOST_BLOCKS, start_worker
from tests.worker.ops.helpers import assert_same_bits
from tests.worker.ops.paged import PagedBatch, Sequence, Shape
from tests.worker.ops.test_coded_attention import FP8, INT8, stood_for, stored_rows
from tests.worker.ops.turning import make_table, turned
from tests.worker.runner.checkpoints import VOCAB, write_tiny_llama
from tests.worker.runner.driver import Driver, Job

pytestmark = pytest.mark.slow

BF16 = torch.bfloat16
CASES: list[tuple[Shape, dict[str, Any]]] = [
    (Shape(6, 2, 24, 8), {}),
    (Shape(8, 2, 64), {"sliding_window": 37}),
    (Shape(7, 1, 128, 4), {"sinks": torch.linspace(-3, 9, 7).to(BF16)}),
    (Shape(2, 1, 256), {"softcap": 5.0}),
    # More query heads per KV head than a tile of decode rows holds.
    (Shape(20, 1, 80, 32), {}),
]


@pytest.fixture(params=[INT8, FP8], ids=["int8", "fp8"])
def codes(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def rows_on_gpu(batch: PagedBatch) -> tuple[Tensor, Tensor]:
    """As stored_rows, of caches in which a head's scales lie behind its codes."""
    shape, length = batch.shape, len(batch.sequences[0])
    blocks = batch.block_tables[0, : -(-length // shape.block_size)].long()

    def rows(cache: Tensor) -> Tensor:
        heads, count = cache[blocks].view(torch.uint8).flatten(2), shape.block_size * shape.head_dim
        parts = (heads[..., :count], heads[..., count:])
        slots = [part.unflatten(2, (shape.block_size, part.shape[2] // shape.block_size)) for part in parts]
        return torch.cat(slots, -1).transpose(1, 2).flatten(0, 1)[:length]

    return rows(batch.k_cache), rows(batch.v_cache)


def test_codes_are_those_of_the_cpu(gpu: Gpu, codes: torch.dtype) -> None:
    shape = Shape(2, 2, 72, 12)
    sequence = Sequence.random(shape, 51, BF16)
    # From the least to more than the greatest that E4M3 has, a row of nothing, and rows of no numbers.
    sequence.k *= torch.logspace(-6, 3, 51).to(BF16)[:, None, None]
    sequence.v[7] = 0
    sequence.v[8, 0, 3], sequence.v[9, 1, 71] = torch.nan, -torch.inf
    sequence.k[3] *= 2.0**-100
    # Every bfloat16, in rows of equal exponents.
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(BF16).view(-1, 1, 128)
    for case, rows in ((shape, sequence), (Shape(1, 1, 128), Sequence(every, every, every.flip(2)))):
        ours = rows_on_gpu(paged_codes(gpu, case, [rows], codes))
        for found, expected in zip(ours, stored_rows(PagedBatch(case, [rows], codes=codes)), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize(("shape", "options"), CASES, ids=str)
def test_attention_has_the_bits_of_that_over_its_numbers(
    gpu: Gpu, shape: Shape, options: dict[str, Any], codes: torch.dtype
) -> None:
    length = 300
    sequence = Sequence.random(shape, length, BF16)
    numbers = Sequence(sequence.q, *(stood_for(x, codes).to(BF16) for x in (sequence.k, sequence.v)))
    coded, plain = paged_codes(gpu, shape, [sequence], codes), paged(shape, [numbers])
    (whole,) = attend(gpu, plain, [(250, length)], **options)
    # A tile, decode steps split over segments and not, and chunks.
    for (begin, end), partial_rows in (
        ((250, length), 4096),
        ((length - 1, length), 4096),
        ((length - 1, length), 0),
        ((255, 258), 0),
    ):
        (part,) = attend(gpu, coded, [(begin, end)], partial_rows, **options)
        assert_same_bits(part, whole[begin - 250 : end - 250])


def test_rows_do_not_depend_on_other_requests(gpu: Gpu, codes: torch.dtype) -> None:
    shape, spans = Shape(6, 2, 32, 8), [(89, 90), (0, 1), (0, 33), (40, 150), (63, 64)]
    sequences = [Sequence.random(shape, end, BF16) for _, end in spans]
    together = attend(gpu, paged_codes(gpu, shape, sequences, codes), spans)
    for sequence, span, out in zip(sequences, spans, together, strict=True):
        (alone,) = attend(gpu, paged_codes(gpu, shape, [sequence], codes), [span])
        assert_same_bits(alone, out)


def test_a_bad_key_spoils_the_rows_that_see_it_and_no_others(gpu: Gpu, codes: torch.dtype) -> None:
    shape = Shape(4, 2, 24)
    sequence = Sequence.random(shape, 80, BF16)
    (clean,) = attend(gpu, paged_codes(gpu, shape, [sequence], codes), [(66, 80)], sliding_window=5)
    sequence.k[70, 1, 3] = torch.nan
    batch = paged_codes(gpu, shape, [sequence], codes)
    # Blocks that have left the window may hold anything.
    batch.k_cache[batch.block_tables[0, :3].long()] = 0x7F
    batch.block_tables[0, :3] = -1
    (dirty,) = attend(gpu, batch, [(66, 80)], sliding_window=5)
    # Query heads 2 and 3 at positions 70 to 74.
    assert dirty[4:9, 2:].isnan().all()
    assert_same_bits(dirty[:, :2], clean[:, :2])
    assert_same_bits(dirty[9:], clean[9:])


def test_keys_turn_before_they_are_coded(gpu: Gpu, codes: torch.dtype) -> None:
    qkv = gpu.randn(9, 9, 80, dtype=BF16)
    q, k, v = qkv.split([5, 2, 2], dim=1)
    before = k.clone()
    positions, table = torch.randperm(9).int().to(gpu.device), make_table(32, 50).to(gpu.device)
    norm = gpu.randn(80, dtype=BF16)
    size = (3, 2, 4, 82 if codes == INT8 else 80)
    first, second = (torch.full((2, *size), 3, dtype=codes, device=gpu.device) for _ in range(2))
    slots = torch.tensor([3, 11, -1, 0, 7, 2, 12, 5, 1]).to(gpu.device)
    gpu.ops.rotary_kv_write(q, k, v, positions, table, first[0], first[1], slots, norm, norm, 1e-5)
    gpu.ops.kv_write(k, v, second[0], second[1], slots)
    assert torch.equal(first.cpu(), second.cpu())
    # Tokens without a slot, or with one outside the cache, are written nowhere, whatever becomes of them.
    kept = [0, 1, 3, 4, 5, 7, 8]
    expected = turned(before, positions, table, norm, 1e-5)
    torch.testing.assert_close(k[kept].cpu(), expected[kept].cpu(), atol=0.02, rtol=0.02)


def test_arguments_are_checked(gpu: Gpu) -> None:
    k, one = gpu.randn(1, 2, 8, dtype=BF16), torch.zeros(1, dtype=torch.int32, device=gpu.device)
    cache = torch.zeros(2, 2, 2, 8, dtype=INT8, device=gpu.device)
    with pytest.raises(ValueError, match="k_cache: expected size 10 in dimension 3, got 8"):
        gpu.ops.kv_write(k, k, cache, cache.clone(), one)
    cache = torch.zeros(2, 2, 2, 10, dtype=INT8, device=gpu.device)
    with pytest.raises(ValueError, match="k_cache: the codes of a head must begin at multiples of 8 bytes"):
        gpu.ops.kv_write(k, k, cache, cache.clone(), one)
    with pytest.raises(ValueError, match="k_cache: the last two dimensions must be contiguous"):
        gpu.ops.kv_write(k, k, cache.transpose(1, 2), cache.clone(), one)
    with pytest.raises(TypeError, match="k_cache: a cache of codes takes bfloat16 activations only"):
        gpu.ops.kv_write(k.half(), k.half(), cache, cache.clone(), one)


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_preempted_requests_come_back_with_the_same_bits(gpu: Gpu, name: str, tmp_path: Path) -> None:
    checkpoint = write_tiny_llama(tmp_path / "bf16", dtype=BF16)
    worker, config = start_worker(gpu, checkpoint, dtype="bfloat16", kv_cache_dtype=name)
    rng = random.Random(5)
    jobs = [
        Job([rng.randrange(VOCAB) for _ in range(length)], SequenceSampling(seed=length), 5)
        for length in (5, 17, 26, 9)
    ]
    alone = [job.again() for job in jobs]
    for job in alone:
        Driver(worker, config, NUM_BLOCKS).run([job])
    driver = Driver(worker, config, NUM_BLOCKS, random.Random(5), NUM_HOST_BLOCKS)
    driver.run(jobs)
    assert driver.host.num_loads > 0
    if gpu.is_emulated:
        # How cuBLAS adds up depends on the number of rows.
        assert jobs == alone
