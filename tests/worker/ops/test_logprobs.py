"""top_logprobs: values, order, ranks; token_logprobs: the same values for given tokens."""

import pytest
import torch

from splitserve.worker.ops.cpu import ops


def run(logits: torch.Tensor, rows: list[int], tokens: list[int], k: int) -> tuple[torch.Tensor, ...]:
    count = len(rows)
    ids, ranks = torch.empty(count, 1 + k, dtype=torch.int32), torch.empty(count, dtype=torch.int32)
    logprobs = torch.empty(count, 1 + k)
    as_int32 = [torch.tensor(x, dtype=torch.int32) for x in (rows, tokens)]
    ops.sampling.top_logprobs(ids, logprobs, ranks, logits, *as_int32)
    return ids, logprobs, ranks


@pytest.mark.parametrize("k", [0, 1, 5, 20, 64, 300])
@pytest.mark.parametrize("vocab", [300, 1013])
def test_matches_log_softmax_and_topk(vocab: int, k: int) -> None:
    logits = torch.randn(4, vocab) * 5
    rows, tokens = [3, 0, 0, 2], [7, 299, 0, 100]
    ids, logprobs, ranks = run(logits, rows, tokens, k)
    picked = logits[rows]
    exact = picked.double().log_softmax(-1)
    assert ids[:, 0].tolist() == tokens
    assert torch.equal(ids[:, 1:].long(), picked.topk(k).indices)
    assert (logprobs - exact.gather(1, ids.long())).abs().max() < 1e-5
    expected_ranks = [int((row > row[t]).sum()) + 1 for row, t in zip(picked, tokens, strict=True)]
    assert ranks.tolist() == expected_ranks


def test_ties_come_lowest_id_first_in_order_and_rank() -> None:
    row = torch.full((1, 40), -1.0)
    row[0, [5, 20, 33]] = 2.0
    ids, _, ranks = run(row, [0, 0], [33, 6], 5)
    assert ids[0].tolist() == [33, 5, 20, 33, 0, 1]
    assert ranks.tolist() == [3, 3 + 6]


@pytest.mark.parametrize("k", [1, 20])
@pytest.mark.parametrize("step", [-1.0, 0.0, 0.01, 1.0])
def test_rows_in_which_many_tokens_displace_others(step: float, k: int) -> None:
    row = torch.arange(1000)[None] * step
    ids, _, _ = run(row, [0], [500], k)
    expected = row[0].sort(descending=True, stable=True).indices[:k]
    assert torch.equal(ids[0, 1:].long(), expected)


def test_fewer_tokens_than_asked_for_are_padded() -> None:
    ids, logprobs, _ = run(torch.zeros(1, 3), [0], [1], 5)
    assert ids[0].tolist() == [1, 0, 1, 2, -1, -1]
    assert torch.isinf(logprobs[0, 4:]).all()


def test_masked_tokens_have_probability_zero() -> None:
    row = torch.randn(1, 30)
    row[0, 3:] = float("-inf")
    ids, logprobs, ranks = run(row, [0], [10], 4)
    assert logprobs[0, 0] == float("-inf")
    assert ranks.tolist() == [11]
    assert set(ids[0, 1:4].tolist()) == {0, 1, 2}
    assert (logprobs[0, 1:4].exp().sum() - 1).abs() < 1e-6


def test_a_nan_row_is_marked_and_leaves_the_others_alone() -> None:
    logits = torch.randn(2, 50)
    logits[0, 9] = float("nan")
    ids, logprobs, ranks = run(logits, [0, 1], [4, 4], 2)
    assert ids[0].tolist() == [4, -1, -1]
    assert logprobs[0].isnan().all()
    assert ranks[0] == 0
    assert torch.equal(logprobs[1:], run(logits[1:], [0], [4], 2)[1])


def test_values_do_not_depend_on_batch_or_threads() -> None:
    logits = torch.randn(40, 2001)
    ops.set_num_threads(2)
    _, together, _ = run(logits, list(range(40)), [5] * 40, 7)
    ops.set_num_threads(1)
    for i in (0, 13, 39):
        assert torch.equal(run(logits, [i], [5], 7)[1], together[i : i + 1])


def given(logits: torch.Tensor, rows: list[int], token_ids: list[list[int]]) -> list[torch.Tensor]:
    """Logprobs of each row's own token ids."""
    lengths = [len(ids) for ids in token_ids]
    ends = torch.tensor([0, *lengths]).cumsum(0)
    flat = torch.tensor([i for ids in token_ids for i in ids], dtype=torch.int32)
    out = torch.empty(len(flat))
    ops.sampling.token_logprobs(out, logits, torch.tensor(rows, dtype=torch.int32), ends.int(), flat)
    return list(out.split(lengths))


@pytest.mark.parametrize("vocab", [300, 1013])
def test_given_tokens_get_their_log_softmax(vocab: int) -> None:
    logits = torch.randn(4, vocab) * 5
    asked = [[7, 299, 7], [], [0]]
    for row, ids, found in zip([3, 1, 0], asked, given(logits, [3, 1, 0], asked), strict=True):
        exact = logits[row].double().log_softmax(-1)[ids]
        assert torch.allclose(found.double(), exact, atol=1e-5, rtol=0)


def test_given_tokens_get_the_bits_of_the_top_ones_in_any_batch() -> None:
    logits = torch.randn(40, 2001)
    ids, top, _ = run(logits, list(range(40)), [5] * 40, 20)
    ops.set_num_threads(2)
    together = given(logits, list(range(40)), ids.tolist())
    ops.set_num_threads(1)
    for i in range(40):
        assert torch.equal(together[i], top[i])
        assert torch.equal(given(logits, [i], [ids[i].tolist()])[0], top[i])


def test_given_tokens_of_a_nan_row_are_nan() -> None:
    logits = torch.randn(2, 50)
    logits[0, 9] = float("nan")
    broken, good = given(logits, [0, 1], [[3, 9], [3]])
    assert broken.isnan().all()
    assert good.isfinite().all()
