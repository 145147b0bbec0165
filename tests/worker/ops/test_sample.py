"""sample: distribution, filters, determinism and odd inputs."""

import math

import pytest
import torch

from splitserve.worker.ops.cpu import ops
from tests.worker.ops.draws import Filters, draw, draw_many, kept_tokens, mask_bits

COUNT = 20000


def chi_square(tokens: torch.Tensor, probabilities: torch.Tensor) -> float:
    """In standard deviations from what an exact sampler gives; the test statistic is nearly normal."""
    expected = probabilities.double() * len(tokens)
    observed = torch.bincount(tokens, minlength=len(expected)).double()
    assert observed[expected == 0].sum() == 0
    keep = expected > 0
    statistic = ((observed - expected)[keep].square() / expected[keep]).sum().item()
    freedom = int(keep.sum()) - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("vocab", [3, 16, 37])
def test_draws_follow_the_softmax(vocab: int, temperature: float) -> None:
    row = torch.randn(vocab)
    tokens = draw_many(row, Filters(temperature), COUNT)
    assert chi_square(tokens, (row / temperature).softmax(0)) < 5


def test_draws_follow_the_filtered_softmax() -> None:
    row, filters = torch.randn(40), Filters(top_k=12, top_p=0.8)
    kept = torch.tensor(sorted(kept_tokens(row, filters)))
    probabilities = torch.zeros(40)
    probabilities[kept] = row[kept].softmax(0)
    assert chi_square(draw_many(row, filters, COUNT), probabilities) < 5


def test_draws_over_positions_of_one_seed_and_seeds_at_one_position_both_follow_the_softmax() -> None:
    row, index = torch.randn(20), torch.arange(COUNT)
    for seeds, positions in [(torch.full_like(index, 1), index), (index, torch.full_like(index, 5))]:
        tokens = draw(row.expand(COUNT, -1), Filters(), seeds, positions)
        assert chi_square(tokens, row.softmax(0)) < 5


def test_successive_draws_are_independent() -> None:
    row, index = torch.zeros(6), torch.arange(COUNT)
    tokens = draw(row.expand(COUNT, -1), Filters(), torch.full_like(index, 3), index)
    pairs = tokens[:-1] * 6 + tokens[1:]
    assert chi_square(pairs, torch.full((36,), 1 / 36)) < 5


def test_a_large_flat_vocabulary_is_drawn_evenly() -> None:
    index = torch.arange(1500)
    tokens = draw(torch.zeros(1, 50000).expand(1500, -1), Filters(), index * 7919, index)
    assert chi_square(tokens * 20 // 50000, torch.full((20,), 1 / 20)) < 5
    assert len(tokens.unique()) > 1400


FILTERS = [
    Filters(top_k=1),
    Filters(top_k=7),
    Filters(top_p=0.5),
    Filters(top_p=0.97, temperature=2.0),
    Filters(top_p=1e-6),
    Filters(min_p=0.2),
    Filters(min_p=1.0),
    Filters(0.7, top_k=20, top_p=0.9, min_p=0.02),
    Filters(top_k=1000),
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_filters_keep_exactly_the_reference_set(filters: Filters) -> None:
    # Two units of spread: every kept token is likely enough to turn up.
    row = torch.rand(35) * 2
    assert set(draw_many(row, filters, 6000).tolist()) == kept_tokens(row, filters)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_filters_of_a_large_vocabulary_draw_only_from_the_reference_set(filters: Filters) -> None:
    row = torch.randn(3001) * 4
    assert set(draw_many(row, filters, 100).tolist()) <= kept_tokens(row, filters)


@pytest.mark.parametrize("filters", [Filters(top_k=3), Filters(top_p=0.3)], ids=str)
def test_ties_at_the_border_go_to_the_lowest_ids(filters: Filters) -> None:
    row = torch.full((10,), -3.0)
    row[[2, 4, 5, 7, 9]] = 1.0
    kept = kept_tokens(row, filters)
    assert kept <= {2, 4, 5}
    assert set(draw_many(row, filters, 500).tolist()) == kept


def test_temperature_zero_takes_the_lowest_id_among_the_highest() -> None:
    logits = torch.randn(4, 101).round(decimals=1)
    zeros = torch.zeros(4, dtype=torch.int64)
    expected = [min((row == row.max()).nonzero()).item() for row in logits]
    assert draw(logits, Filters(temperature=0.0), zeros, zeros).tolist() == expected
    assert draw(logits, Filters(temperature=1e-38), zeros, zeros).tolist() == expected


@pytest.mark.parametrize("filters", [Filters(), Filters(0.8, 50, 0.9, 0.01)], ids=str)
def test_a_row_draws_the_same_token_anywhere_in_any_batch(filters: Filters) -> None:
    logits, seeds, positions = torch.randn(33, 2003), torch.arange(33) << 40, torch.arange(33) * 5
    ops.set_num_threads(2)
    together = draw(logits, filters, seeds, positions)
    ops.set_num_threads(1)
    reversed_order = draw(logits.flip(0), filters, seeds.flip(0), positions.flip(0)).flip(0)
    alone = torch.cat(
        [draw(logits[i : i + 1], filters, seeds[i : i + 1], positions[i : i + 1]) for i in range(33)]
    )
    assert torch.equal(together, reversed_order)
    assert torch.equal(together, alone)


def test_every_instruction_set_draws_the_same_tokens(isa: str) -> None:
    logits, index = torch.randn(50, 1009), torch.arange(50)
    here = draw(logits, Filters(), index, index)
    ops.set_isa("portable")
    assert torch.equal(here, draw(logits, Filters(), index, index))


def test_logits_are_left_alone_and_may_be_strided() -> None:
    wide, index = torch.randn(5, 300), torch.arange(5)
    before, logits = wide.clone(), wide[:, 50:250]
    tokens = draw(logits, Filters(0.9, 10, 0.9), index, index)
    assert torch.equal(tokens, draw(logits.contiguous(), Filters(0.9, 10, 0.9), index, index))
    assert torch.equal(wide, before)


@pytest.mark.parametrize(
    "filters", [Filters(), Filters(top_k=30), Filters(top_p=0.999), Filters(0.0)], ids=str
)
def test_masked_tokens_are_never_drawn(filters: Filters) -> None:
    row = torch.full((50,), float("-inf"))
    row[[11, 40]] = torch.tensor([0.5, -20.0])
    assert set(draw_many(row, filters, 300).tolist()) <= {11, 40}


@pytest.mark.parametrize("filters", [Filters(), Filters(top_k=5, top_p=0.5, min_p=0.1)], ids=str)
def test_rows_without_finite_maximum(filters: Filters) -> None:
    logits = torch.randn(4, 70)
    logits[0, 69] = float("nan")
    logits[1] = float("-inf")
    logits[2, [33, 44]] = float("inf")
    index = torch.arange(4)
    tokens = draw(logits, filters, index, index)
    assert tokens[:3].tolist() == [-1, -2, 33]
    assert 0 <= tokens[3] < 70


def masked_draw(
    logits: torch.Tensor, filters: Filters, masks: torch.Tensor, mask_rows: list[int]
) -> list[int]:
    """Draws with seeds and positions of their own from a copy of the logits."""
    index = torch.arange(len(logits))
    rows = torch.tensor(mask_rows, dtype=torch.int32)
    return draw(logits.clone(), filters, index * 77, index, masks, rows).tolist()


@pytest.mark.parametrize("filters", [Filters(), Filters(0.0), Filters(2.0, 9, 0.8)], ids=str)
@pytest.mark.parametrize("vocab", [5, 32, 1009])
def test_a_masked_row_is_drawn_as_if_the_rest_were_minus_infinity(vocab: int, filters: Filters) -> None:
    logits, allowed = torch.randn(40, vocab) * 2, torch.rand(3, vocab) < 0.3
    allowed[:, 1] = True
    mask_rows = [-1, 2, 0, 1] * 10
    forbidden = torch.stack(
        [~allowed[i] if i >= 0 else torch.zeros(vocab, dtype=torch.bool) for i in mask_rows]
    )
    index = torch.arange(40)
    expected = draw(logits.masked_fill(forbidden, -math.inf), filters, index * 77, index).tolist()
    assert masked_draw(logits, filters, mask_bits(allowed), mask_rows) == expected


def test_a_mask_that_allows_nothing_leaves_nothing_and_a_nan_fails_under_any_mask() -> None:
    logits, allowed = torch.randn(3, 70), torch.zeros(2, 70, dtype=torch.bool)
    allowed[1, 3] = True
    logits[2, 69] = math.nan
    assert masked_draw(logits, Filters(), mask_bits(allowed), [0, 1, 1]) == [-2, 3, -1]


def test_rows_without_a_mask_are_left_alone() -> None:
    logits, index = torch.randn(3, 70), torch.arange(3)
    before, nothing = logits.clone(), torch.zeros(1, 3, dtype=torch.int32)
    draw(logits, Filters(), index, index, nothing, torch.tensor([-1, 0, -1], dtype=torch.int32))
    assert torch.equal(logits[[0, 2]], before[[0, 2]])


@pytest.mark.parametrize(
    ("message", "masks", "rows"),
    [
        ("mask_rows: 1 is not a row of masks", (1, 3), (0, 1)),
        ("masks: expected size 3 in dimension 1", (1, 2), (0, 0)),
        ("mask_rows: expected size 2", (1, 3), (0,)),
    ],
)
def test_wrong_masks_are_refused(message: str, masks: tuple[int, int], rows: tuple[int, ...]) -> None:
    index, mask_rows = torch.arange(2), torch.tensor(rows, dtype=torch.int32)
    with pytest.raises(ValueError, match=message):
        draw(torch.randn(2, 70), Filters(), index, index, torch.zeros(masks, dtype=torch.int32), mask_rows)


def test_masks_and_their_rows_come_together() -> None:
    index = torch.arange(2)
    with pytest.raises(ValueError, match="mask_rows: given if and only if masks is"):
        draw(torch.randn(2, 70), Filters(), index, index, torch.zeros(1, 3, dtype=torch.int32))
