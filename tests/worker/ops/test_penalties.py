"""apply_penalties against a plain loop over tokens."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from splitserve.worker.ops.cpu import ops

VOCAB = 60


def int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def expected_row(row: Tensor, prompt: list[int], output: list[int], penalties: tuple[float, ...]) -> Tensor:
    repetition, frequency, presence = penalties
    row, counts = row.clone(), Counter(output)
    for token in set(prompt) | set(output):
        row[token] = row[token] / repetition if row[token] > 0 else row[token] * repetition
    for token, count in counts.items():
        row[token] -= frequency * count
        row[token] -= presence
    return row


@pytest.mark.parametrize("penalties", [(1.3, 0.0, 0.0), (1.0, 0.7, 0.0), (1.0, 0.0, -0.4), (0.8, -0.2, 1.5)])
def test_matches_a_loop_over_the_history(penalties: tuple[float, float, float]) -> None:
    logits, history = torch.randn(5, VOCAB), torch.randint(0, VOCAB, (9, 400), dtype=torch.int32)
    rows, history_rows = [3, 0, 4], [8, 2, 2]
    prompt_lens, total_lens = [10, 0, 50], [300, 7, 50]
    expected = logits.clone()
    for row, source, prompt_len, total_len in zip(rows, history_rows, prompt_lens, total_lens, strict=True):
        tokens = history[source, :total_len].tolist()
        expected[row] = expected_row(logits[row], tokens[:prompt_len], tokens[prompt_len:], penalties)
    vectors = [torch.full((3,), value) for value in penalties]
    ops.sampling.apply_penalties(
        logits, int32(rows), history, int32(history_rows), int32(prompt_lens), int32(total_lens), *vectors
    )
    assert torch.allclose(logits, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(logits[[1, 2]], expected[[1, 2]])


def test_unknown_tokens_and_an_empty_history_change_nothing() -> None:
    logits, history = torch.randn(2, VOCAB), torch.tensor([[-1, VOCAB, 5], [1, 2, 3]], dtype=torch.int32)
    expected = logits.clone()
    expected[0, 5] -= 1
    one = torch.ones(2)
    ops.sampling.apply_penalties(
        logits, int32([0, 1]), history, int32([0, 1]), int32([0, 0]), int32([3, 0]), one, one * 0, one
    )
    assert torch.equal(logits, expected)


def test_does_not_depend_on_threads() -> None:
    logits, history = torch.randn(30, 500), torch.randint(0, 500, (30, 2000), dtype=torch.int32)
    index, lens = torch.arange(30, dtype=torch.int32), torch.full((30,), 2000, dtype=torch.int32)
    arguments = (index, history, index, lens // 2, lens, *torch.full((3, 30), 1.1))
    twice = [logits.clone(), logits.clone()]
    for threads, target in enumerate(twice, start=1):
        ops.set_num_threads(threads)
        ops.sampling.apply_penalties(target, *arguments)
    assert torch.equal(*twice)


@pytest.mark.parametrize(
    ("name", "position", "value"),
    [("rows", 1, 2), ("history_rows", 3, 1), ("total_lens", 5, 4), ("repetition", 6, 0)],
)
def test_refuses_values_out_of_range(name: str, position: int, value: int) -> None:
    zero, one = int32([0]), torch.ones(1)
    arguments = [
        torch.randn(2, 10),
        zero,
        torch.zeros(1, 3, dtype=torch.int32),
        zero,
        zero,
        zero,
        one,
        one,
        one,
    ]
    arguments[position] = torch.full_like(arguments[position], value)
    with pytest.raises(ValueError, match=name):
        ops.sampling.apply_penalties(*arguments)
