"""Drafts are what followed the longest, then latest earlier occurrence of a row's end; within all limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from splitserve.worker.ops.columns import Array, NgramColumns, allocate
from splitserve.worker.ops.drafts.limits import CALL_SIZE, NUM_DRAFTS, DraftLimits, DraftTensors
from splitserve.worker.ops.drafts.ngrams import NgramLengths, draft_ngrams
from tests.worker.ops.drafts.drafted_rows import LIMITS, SIZES, DraftedRows, N

LENGTHS = NgramLengths(2, 4)


class Drafter:
    """Rows that draft by prompt lookup."""

    def __init__(self, *rows: list[int], limits: DraftLimits = LIMITS) -> None:
        self.rows = DraftedRows(*rows, limits=limits)
        self.batch, self.drafts, self.account = self.rows.batch, self.rows.drafts, self.rows.account
        self.columns = allocate(NgramColumns[Array], N, SIZES)
        self.extend = self.rows.extend

    def kernel(self, step: DraftTensors) -> None:
        draft_ngrams(step, NgramColumns(*map(torch.from_numpy, self.columns)), LENGTHS)

    def draft(
        self,
        max_drafts: int = 4,
        rows: tuple[int, ...] = (0,),
        before: dict[int, list[int]] | None = None,
    ) -> list[list[int] | None]:
        return self.rows.draft(self.kernel, max_drafts, rows, before)


def expected(tokens: list[int], max_drafts: int, low: int, high: int) -> list[int]:
    """The same by search."""
    for length in range(high, low - 1, -1):
        for place in range(len(tokens) - 1, length - 1, -1):
            if tokens[place - length : place] == tokens[-length:]:
                text = list(tokens)
                for i in range(max_drafts):
                    text.append(text[place + i])
                return text[len(tokens) :]
    return []


def test_the_longest_then_latest_earlier_occurrence_is_continued() -> None:
    assert Drafter([1, 2, 3, 9, 2, 3, 8, 5, 2, 3]).draft() == [[8, 5, 2, 3]]
    assert Drafter([1, 2, 3, 9, 2, 3, 8, 5, 1, 2, 3]).draft() == [[9, 2, 3, 8]]
    assert Drafter([7, 2, 3, 9, 2, 8]).draft() == [[]]
    assert Drafter([5]).draft() == [[]]


def test_a_text_that_repeats_itself_is_continued_by_its_own_drafts() -> None:
    assert Drafter([4, 6, 4, 6, 4]).draft(5) == [[6, 4, 6, 4, 6]]


@pytest.mark.parametrize("seed", range(8))
def test_drafts_are_those_of_a_search_however_the_row_grew(seed: int) -> None:
    rng = np.random.default_rng(seed)
    drafter = Drafter([], [], [])
    texts: list[list[int]] = [[], [], []]
    for _ in range(12):
        for row, text in enumerate(texts):
            more = rng.integers(0, 3, rng.integers(1, 5)).tolist()
            text += more
            drafter.extend(row, more)
        rows = tuple(rng.permutation(N)[: rng.integers(1, N + 1)].tolist())
        assert drafter.draft(3, rows) == [expected(texts[row], 3, 2, 4) for row in rows]


def test_a_row_drafts_no_further_than_its_limits() -> None:
    text = [1, 2, 3, 4, 5, 6] * 2
    drafter = Drafter(text)
    drafter.drafts.max_num_computed[0] = len(text) + 1
    assert drafter.draft() == [[1]]
    drafter.drafts.max_num_computed[0] = len(text)
    assert drafter.draft() == [[]]
    drafter.drafts.max_num_computed[0] = len(text) - 1
    assert drafter.draft() == [None]
    drafter.drafts.max_num_computed[0] = 1000
    drafter.batch.num_blocks[0] = 3
    assert drafter.draft() == [[]]
    drafter.batch.num_blocks[0] = 4
    drafter.account.width[0] = 2
    assert drafter.draft() == [[1, 2]]
    assert drafter.draft(0) == [[]]


def test_rows_share_what_the_step_has_room_for() -> None:
    text = [1, 2, 3, 4, 5, 6] * 2
    for changes in ({"max_tokens": 3 + 5}, {"max_logits": 3 + 5}):
        drafter = Drafter(text, text, text, limits=LIMITS._replace(**changes))
        assert drafter.draft(4, (2, 0, 1)) == [[1, 2, 3, 4], [1], []]


def test_rows_that_pause_prefill_or_have_features_draft_nothing() -> None:
    text = [1, 2, 3, 4, 5, 6] * 2
    drafter = Drafter(text)
    drafter.account.pause[0] = 2
    assert [drafter.draft(1) for _ in range(3)] == [[[]], [[]], [[1]]]
    drafter.batch.num_computed[0] -= 1
    assert drafter.draft() == [[]]
    drafter.batch.num_computed[0] += 1
    drafter.batch.features[0] = 256
    assert drafter.draft() == [[]]
    drafter.batch.features[0] = 1
    assert drafter.draft(1) == [[1]]


def test_a_row_that_begins_anew_knows_nothing_of_the_one_before() -> None:
    drafter = Drafter([1, 2, 3, 1, 2])
    assert drafter.draft(1) == [[3]]
    drafter.batch.num_tokens[0] = drafter.columns.num_indexed[0] = 0
    drafter.extend(0, [8, 8, 8, 1, 2])
    assert drafter.draft(1) == [[]]


def test_drafts_go_on_behind_those_of_another_drafter() -> None:
    drafter = Drafter([1, 2, 3, 4, 5, 9])
    assert drafter.draft(4, before={0: [1, 2]}) == [[1, 2, 3, 4]]
    assert drafter.draft(4, before={0: [7]}) == [[7]]
    # No draft of a step is found in later ones: it may not have counted.
    drafter.extend(0, [8, 1, 2])
    assert drafter.draft(1) == [[3]]


def test_rows_that_are_not_there_are_passed_over() -> None:
    drafter = Drafter([1, 2, 1, 2])

    def kernel(step: DraftTensors) -> None:
        step.rows[1], step.rows[2], step.call[0] = -1, 7, 3
        drafter.kernel(step)
        step.call[0] = 1

    assert drafter.draft(2, (0,)) == drafter.rows.draft(kernel, 2) == [[1, 2]]


def test_wrong_arguments_are_named() -> None:
    drafter = Drafter([1, 2, 1, 2])
    columns = NgramColumns(*map(torch.from_numpy, drafter.columns))

    def refused(step: DraftTensors) -> None:
        with pytest.raises(ValueError, match="n-grams of 3 to 2 tokens"):
            draft_ngrams(step, columns, NgramLengths(3, 2))
        with pytest.raises(ValueError, match="heads: expected a power of two"):
            draft_ngrams(step, columns._replace(heads=columns.heads[:, :15]), LENGTHS)
        with pytest.raises(ValueError, match="call"):
            draft_ngrams(step._replace(call=step.call[: CALL_SIZE - 1]), columns, LENGTHS)
        with pytest.raises(ValueError, match="rows"):
            draft_ngrams(step._replace(rows=step.rows[:2]), columns, LENGTHS)
        assert step.call[NUM_DRAFTS] == 0

    drafter.rows.draft(refused)
