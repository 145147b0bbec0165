"""sample, logprobs and penalties on a GPU: what the CPU kernels give, whose own tests check them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.interface import Kernels
from tests.gpu.conftest import Gpu
from tests.worker.ops.draws import Filters, mask_bits

pytestmark = pytest.mark.slow

# One thread block per row; and a cluster of them.
VOCABS = [3, 37, 1009, 9001]

FILTERS = [
    Filters(),
    Filters(0.0),
    Filters(top_k=1),
    Filters(top_k=7),
    Filters(top_p=0.5),
    Filters(top_p=0.97, temperature=2.0),
    Filters(top_p=1e-6),
    Filters(min_p=0.2),
    Filters(0.7, top_k=20, top_p=0.9, min_p=0.02),
    Filters(top_k=1000),
]


def odd_logits(vocab: int) -> Tensor:
    """Rows of random, tied, masked, flat, NaN, infinite and wholly masked logits."""
    rows = torch.randn(8, vocab) * 3
    rows[1] = rows[1].round()
    rows[2, 2:] = float("-inf")
    rows[3] = 0.0
    rows[4, vocab - 1] = float("nan")
    rows[5, [0, vocab - 2]] = float("inf")
    rows[6] = float("-inf")
    rows[7, ::2] = -0.0
    return rows


def draw(device_ops: Kernels, logits: Tensor, filters: Filters, seed: int, *masks: Tensor) -> list[int]:
    rows, device = logits.shape[0], logits.device
    out = torch.full((rows,), -9, dtype=torch.int32, device=device)
    columns = [torch.full((rows,), value) for value in (filters.temperature, filters.top_p, filters.min_p)]
    temperature, top_p, min_p = (x.to(device) for x in columns)
    top_k = torch.full((rows,), filters.top_k, dtype=torch.int32, device=device)
    index = torch.arange(rows, device=device)
    placed = (x.to(device) for x in masks)
    noise = index + (seed << 40), index * 3
    device_ops.sampling.sample(out, logits, temperature, top_k, top_p, min_p, *noise, *placed)
    return out.tolist()


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("vocab", VOCABS)
def test_draws_the_tokens_of_the_cpu(gpu: Gpu, vocab: int, filters: Filters) -> None:
    logits = odd_logits(vocab)
    # Emulated, a cluster is slow.
    for seed in range(3 if vocab < 9000 else 1):
        assert draw(gpu.ops, logits.to(gpu.device), filters, seed) == draw(ops, logits, filters, seed)


@pytest.mark.parametrize("filters", [Filters(), Filters(0.0), FILTERS[8]], ids=str)
@pytest.mark.parametrize("vocab", VOCABS)
def test_masked_rows_among_others_draw_the_tokens_of_the_cpu(gpu: Gpu, vocab: int, filters: Filters) -> None:
    logits, allowed = odd_logits(vocab), torch.rand(3, vocab) < torch.tensor([[0.01], [0.5], [0.99]])
    allowed[1:, 2] = True
    masks = mask_bits(allowed), torch.tensor([0, -1, 1, 2, 2, 1, -1, 2], dtype=torch.int32)
    ours = logits.to(gpu.device)
    drawn = draw(gpu.ops, ours, filters, 5, *masks)
    assert drawn == draw(ops, logits.clone(), filters, 5, *masks)
    # Whatever is asked for later comes from the model's own logits.
    assert torch.equal(ours.cpu().nan_to_num(7.0), logits.nan_to_num(7.0))


def test_a_mask_that_is_not_there_allows_all(gpu: Gpu) -> None:
    logits, masks = gpu.randn(8, 70), torch.zeros(2, 3, dtype=torch.int32)
    rows = torch.tensor([2, 0, 1, -5, 1 << 30, 0, 1, 2], dtype=torch.int32)
    masked, plain = draw(gpu.ops, logits, Filters(), 1, masks, rows), draw(gpu.ops, logits, Filters(), 1)
    assert masked == [plain[0], -2, -2, plain[3], plain[4], -2, -2, plain[7]]


def test_a_row_draws_the_same_token_anywhere_in_any_batch(gpu: Gpu) -> None:
    logits, index = gpu.randn(5, 2003), torch.arange(5, device=gpu.device)
    filters = (torch.full((5,), value, device=gpu.device) for value in (0.8, 0.9, 0.01))
    temperature, top_p, min_p = filters
    top_k = torch.full((5,), 50, dtype=torch.int32, device=gpu.device)
    together, alone = (torch.empty(5, dtype=torch.int32, device=gpu.device) for _ in range(2))
    gpu.ops.sampling.sample(together, logits, temperature, top_k, top_p, min_p, index, index)
    for i in range(5):
        one = slice(4 - i, 5 - i)
        arguments = (x[one] for x in (alone, logits, temperature, top_k, top_p, min_p, index, index))
        gpu.ops.sampling.sample(*arguments)
    assert torch.equal(together, alone)


def top(device_ops: Any, logits: Tensor, rows: list[int], tokens: list[int], k: int) -> tuple[Tensor, ...]:
    device, count = logits.device, len(rows)
    ids = torch.full((count, 1 + k), -9, dtype=torch.int32, device=device)
    ranks = torch.full((count,), -9, dtype=torch.int32, device=device)
    logprobs = torch.full((count, 1 + k), -9.0, device=device)
    columns = (torch.tensor(x, dtype=torch.int32, device=device) for x in (rows, tokens))
    device_ops.sampling.top_logprobs(ids, logprobs, ranks, logits, *columns)
    return ids.cpu(), logprobs.cpu(), ranks.cpu()


@pytest.mark.parametrize("k", [0, 1, 5, 300])
@pytest.mark.parametrize("vocab", VOCABS)
def test_top_logprobs_are_those_of_the_cpu(gpu: Gpu, vocab: int, k: int) -> None:
    logits, rows = odd_logits(vocab), [7, 0, 1, 2, 3, 4, 5, 6, 1]
    tokens = [0, 1, vocab - 1, 2, 2, 0, 0, 1, vocab // 2]
    ids, logprobs, ranks = top(gpu.ops, logits.to(gpu.device), rows, tokens, k)
    expected_ids, expected, expected_ranks = top(ops, logits, rows, tokens, k)
    assert torch.equal(ids, expected_ids)
    assert torch.equal(ranks, expected_ranks)
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("vocab", VOCABS)
def test_given_tokens_get_the_bits_of_the_top_ones(gpu: Gpu, vocab: int) -> None:
    logits = odd_logits(vocab).to(gpu.device)
    ids, logprobs, _ = top(gpu.ops, logits, [0, 4, 3], [1, 0, 2], 2)
    out = torch.empty(9, device=gpu.device)
    rows, ends = (torch.tensor(x, dtype=torch.int32, device=gpu.device) for x in ([0, 4, 3], [0, 3, 6, 9]))
    gpu.ops.sampling.token_logprobs(out, logits, rows, ends, ids.clamp(min=0).flatten().to(gpu.device))
    assert torch.equal(out.cpu().nan_to_num(7.0), logprobs.flatten().nan_to_num(7.0))


def test_rows_and_tokens_that_are_not_there_are_no_numbers(gpu: Gpu) -> None:
    logits = gpu.randn(2, 50)
    _, logprobs, ranks = top(gpu.ops, logits, [2, -1, 0, 1, 1], [0, 0, 50, -1, 3], 2)
    assert logprobs[:4].isnan().all()
    assert logprobs[4].isfinite().all()
    assert (ranks[:4] == 0).all()


@pytest.mark.parametrize("vocab", [60, 30000])
def test_penalties_give_the_bits_of_the_cpu(gpu: Gpu, vocab: int) -> None:
    logits = torch.randn(5, vocab)
    history = torch.randint(-1, vocab + 2, (9, 700), dtype=torch.int32)
    history[:, ::3] = 5
    columns = [[3, 0, 4], [8, 2, 2], [10, 0, 50], [700, 7, 50]]
    integers = [torch.tensor(x, dtype=torch.int32) for x in columns]
    floats = [torch.tensor(x) for x in ([1.3, 0.8, 1.0], [0.5, -0.2, 0.0], [0.0, 1.5, -0.4])]
    arguments = (integers[0], history, *integers[1:], *floats)
    ours = logits.clone().to(gpu.device)
    gpu.ops.sampling.apply_penalties(ours, *(x.to(gpu.device) for x in arguments))
    expected = logits.clone()
    ops.sampling.apply_penalties(expected, *arguments)
    assert not torch.equal(expected, logits)
    assert torch.equal(ours.cpu(), expected)


@pytest.mark.parametrize("vocab", [60, 30000])
def test_edits_give_the_bits_of_the_cpu(gpu: Gpu, vocab: int) -> None:
    logits = odd_logits(vocab)
    ends = torch.tensor([0, 300, 300, 302, 306], dtype=torch.int32)
    rows = torch.tensor([5, 0, 7, 4], dtype=torch.int32)
    token_ids = torch.randperm(vocab)[:50].repeat(7)[:306].to(torch.int32)
    # A token has one number to add at most, and may be forbidden before and after it any number of times.
    values = torch.full((306,), -torch.inf)
    values[100:125] = torch.randn(25)
    token_ids[300:] = torch.tensor([1, 2, 0, 3, vocab - 1, 3])
    values[300:305] = torch.randn(5)
    ours, expected = logits.to(gpu.device, copy=True), logits.clone()
    arguments = (rows, ends, token_ids, values)
    gpu.ops.sampling.edit_logits(ours, *(x.to(gpu.device) for x in arguments))
    ops.sampling.edit_logits(expected, *arguments)
    assert torch.equal(ours.cpu().nan_to_num(7.0), expected.nan_to_num(7.0))
    assert not torch.equal(expected.nan_to_num(7.0), logits.nan_to_num(7.0))


def test_edits_of_what_is_not_there_are_skipped(gpu: Gpu) -> None:
    logits = torch.zeros(2, 40, device=gpu.device)
    columns = [[2, 0, -1, 1], [0, 1, 4, 4, 9], [0, 40, -1, 5]]
    rows, ends, token_ids = (torch.tensor(x, dtype=torch.int32, device=gpu.device) for x in columns)
    gpu.ops.sampling.edit_logits(logits, rows, ends, token_ids, torch.ones(4, device=gpu.device))
    assert logits.nonzero().tolist() == [[0, 5]]


def test_arguments_are_checked(gpu: Gpu) -> None:
    logits, none = gpu.randn(1, 5), torch.zeros(0, dtype=torch.int32, device=gpu.device)
    with pytest.raises(ValueError, match="out_ids: needs 1 to 1025 columns"):
        top(gpu.ops, logits, [0], [0], 1025)
    with pytest.raises(TypeError, match="logits: unsupported dtype"):
        gpu.ops.sampling.token_logprobs(gpu.randn(0), logits.half(), none, none, none)
