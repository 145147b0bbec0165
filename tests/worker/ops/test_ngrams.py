"""Drafts are what followed the longest, then latest earlier occurrence of a row's end; within all limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from splitserve.worker.ops.columns import Array, BatchColumns, NgramColumns, Width, allocate
from splitserve.worker.ops.ngrams import NgramLimits, draft_ngrams

N, MAX_LEN, BLOCK_SIZE = 3, 60, 4
LIMITS = NgramLimits(BLOCK_SIZE, 2, 4, excluded=256, max_tokens=64, max_logits=64)


class Drafter:
    """Rows, of which all are in the batch and sample in the next step."""

    def __init__(self, *rows: list[int], limits: NgramLimits = LIMITS) -> None:
        elements = {Width.TOKENS: MAX_LEN + 1, Width.BLOCKS: 16, Width.HEADS: 16}
        self.batch = allocate(BatchColumns[Array], N, elements)
        self.columns = allocate(NgramColumns[Array], N, elements)
        self.limits = limits
        self.batch.num_blocks[:] = 15
        self.columns.max_num_computed[:] = 1000
        self.columns.width[:] = 1000
        for row, tokens in enumerate(rows):
            self.batch.occupied[row] = True
            self.extend(row, tokens)

    def extend(self, row: int, tokens: list[int]) -> None:
        length = int(self.batch.num_tokens[row])
        self.batch.tokens[row, length : length + len(tokens)] = tokens
        self.batch.num_tokens[row] = length + len(tokens)
        self.batch.num_computed[row] = length + len(tokens) - 1

    def draft(self, max_drafts: int = 4, rows: tuple[int, ...] = (0,)) -> list[list[int] | None]:
        """The drafts of rows; None of one that has ended."""
        column = np.zeros(N, np.int32)
        column[: len(rows)] = rows
        call = np.array([len(rows), max_drafts, 77, 77], np.int32)
        draft_ngrams(
            torch.from_numpy(column),
            torch.ones(N, dtype=torch.int32),
            BatchColumns(*map(torch.from_numpy, self.batch)),
            NgramColumns(*map(torch.from_numpy, self.columns)),
            torch.from_numpy(call),
            self.limits,
        )
        counts = self.columns.num_drafts[list(rows)].tolist()
        assert call[2] == sum(count != 0 for count in counts)
        assert call[3] == sum(count for count in counts if count > 0)
        found: list[list[int] | None] = []
        for row, count in zip(rows, counts, strict=True):
            end = int(self.batch.num_tokens[row])
            found.append(None if count < 0 else self.batch.tokens[row, end : end + count].tolist())
        return found


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
    drafter.columns.max_num_computed[0] = len(text) + 1
    assert drafter.draft() == [[1]]
    drafter.columns.max_num_computed[0] = len(text)
    assert drafter.draft() == [[]]
    drafter.columns.max_num_computed[0] = len(text) - 1
    assert drafter.draft() == [None]
    drafter.columns.max_num_computed[0] = 1000
    drafter.batch.num_blocks[0] = 3
    assert drafter.draft() == [[]]
    drafter.batch.num_blocks[0] = 4
    drafter.columns.width[0] = 2
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
    drafter.columns.pause[0] = 2
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


def test_rows_that_are_not_there_are_passed_over() -> None:
    drafter = Drafter([1, 2, 1, 2])
    column = np.array([0, -1, 7], np.int32)
    call = np.array([3, 2, 0, 0], np.int32)
    tensors = (torch.from_numpy(column), torch.ones(N, dtype=torch.int32))
    batch = BatchColumns(*map(torch.from_numpy, drafter.batch))
    columns = NgramColumns(*map(torch.from_numpy, drafter.columns))
    draft_ngrams(*tensors, batch, columns, torch.from_numpy(call), LIMITS)
    assert call[2] == 1
    with pytest.raises(ValueError, match="n-grams of 3 to 2 tokens"):
        draft_ngrams(
            *tensors, batch, columns, torch.from_numpy(call), LIMITS._replace(min_ngram=3, max_ngram=2)
        )
