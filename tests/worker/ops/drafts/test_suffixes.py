"""Drafts are what mostly followed the longest match of a row's end, in it or in answers of its owner."""

from __future__ import annotations

import numpy as np
import pytest

from splitserve.worker.ops.drafts.limits import DraftTensors
from splitserve.worker.ops.drafts.suffixes import SuffixKernels, SuffixLimits, suffix_kernels
from tests.worker.ops.drafts.drafted_rows import DraftedRows, N
from tests.worker.ops.drafts.suffix_model import SuffixModel

LIMITS = SuffixLimits(max_depth=12, max_factor=2.0, min_share=0.1, max_tokens=64, max_answers=4)


class Drafter:
    """Rows that draft by suffixes; those of owner 0 share nothing."""

    def __init__(self, limits: SuffixLimits = LIMITS) -> None:
        self.rows = DraftedRows()
        self._owners = [0] * N
        self.kernels: SuffixKernels = suffix_kernels(self.rows.tensors, limits)

    def enter(self, row: int, tokens: list[int], owner: int = 0, answer_begin: int | None = None) -> None:
        self.rows.batch.occupied[row] = True
        self.rows.batch.num_tokens[row] = 0
        self.rows.extend(row, tokens)
        self._owners[row] = owner
        self.kernels.enter(row, len(tokens) if answer_begin is None else answer_begin, owner, -owner)

    def leave(self, row: int) -> None:
        self.kernels.leave(row)
        self.rows.batch.occupied[row] = False

    def answer(self, tokens: list[int], owner: int) -> None:
        """Have an answer kept, of the last row."""
        self.enter(N - 1, [99, *tokens, 98], owner, answer_begin=1)
        self.leave(N - 1)

    def draft(self, max_drafts: int = 4, rows: tuple[int, ...] = (0,)) -> list[list[int] | None]:
        return self.rows.draft(lambda _: self.kernels.draft(), max_drafts, rows)


def test_an_answer_is_continued_as_it_was_and_only_for_its_owner() -> None:
    drafter = Drafter()
    drafter.answer([1, 2, 3, 4, 5], owner=7)
    drafter.enter(0, [8, 2, 3], owner=7)
    drafter.enter(1, [8, 2, 3], owner=6)
    assert drafter.draft(rows=(0, 1)) == [[4, 5], []]
    drafter.enter(0, [8, 2, 3], owner=0)
    assert drafter.draft() == [[]]


def test_what_followed_most_often_is_drafted_as_far_as_it_did() -> None:
    drafter = Drafter(LIMITS._replace(min_share=0.5))
    for end in ([5, 6], [5, 7], [4, 4]):
        drafter.answer([1, 2, *end, 9], owner=7)
    drafter.enter(0, [1, 2], owner=7)
    # Two of three went on with 5, one of three with 5, 7.
    assert drafter.draft() == [[5]]


def test_a_longer_match_drafts_more() -> None:
    drafter = Drafter(LIMITS._replace(max_factor=1.0, max_tokens=128))
    drafter.answer(list(range(20, 40)), owner=7)
    for length in (2, 3, 4):
        drafter.enter(0, list(range(20, 20 + length)), owner=7)
        assert drafter.draft(8) == [list(range(20 + length, 20 + 2 * length))]


def test_of_what_a_row_leaves_its_prompt_and_its_last_token_stay_its_own() -> None:
    drafter = Drafter()
    drafter.enter(0, [1, 2, 3, 4, 5, 6, 7, 8], owner=7, answer_begin=4)
    drafter.leave(0)
    drafter.enter(0, [5, 6], owner=7)
    assert drafter.draft() == [[7]]
    drafter.enter(0, [2, 3], owner=7)
    assert drafter.draft() == [[]]


def test_answers_that_are_used_stay_and_others_leave_whole() -> None:
    drafter = Drafter()
    for i in range(4):
        drafter.answer([10 * i + 1, 10 * i + 2, 10 * i + 3], owner=7)
    drafter.enter(0, [1, 2], owner=7)
    assert drafter.draft() == [[3]]
    # The first one goes to the front, the second leaves.
    drafter.answer([51, 52, 53], owner=7)
    assert drafter.kernels.num_answers() == 4
    found = []
    for i in range(6):
        drafter.enter(0, [10 * i + 1, 10 * i + 2], owner=7)
        found += drafter.draft()
    assert found == [[3], [], [23], [33], [], [53]]


def test_without_answers_a_row_has_its_own_text() -> None:
    drafter = Drafter(LIMITS._replace(max_answers=0))
    drafter.answer([1, 2, 3], owner=7)
    drafter.enter(0, [4, 6, 4, 6, 4], owner=7)
    assert drafter.draft() == [[6, 4, 6, 4]]
    assert drafter.kernels.num_answers() == 0


@pytest.mark.parametrize("seed", range(12))
def test_drafts_are_those_of_a_search_however_rows_come_and_go(seed: int) -> None:
    rng = np.random.default_rng(seed)
    limits = SuffixLimits(
        max_depth=int(rng.integers(3, 30)),
        max_factor=float(rng.choice([0.5, 1.0, 4.0])),
        min_share=float(rng.choice([0.0, 0.1, 0.4, 1.0])),
        max_tokens=int(rng.choice([64, 256])),
        max_answers=int(rng.choice([1, 4, 50])),
    )
    drafter, model = Drafter(limits), SuffixModel(limits)
    num_tokens = int(rng.choice([2, 4]))
    texts: list[list[int]] = [[]] * N
    owners, begins = [0] * N, [0] * N
    num_drafted = 0
    for _ in range(150):
        row = int(rng.integers(N))
        if not drafter.rows.batch.occupied[row]:
            texts[row] = rng.integers(0, num_tokens, rng.integers(1, 6)).tolist()
            owners[row], begins[row] = int(rng.integers(0, 3)), int(rng.integers(0, len(texts[row]) + 1))
            drafter.enter(row, texts[row], owners[row], begins[row])
        elif len(texts[row]) > 44 or rng.random() < 0.1:
            model.keep(owners[row], texts[row][begins[row] : -1])
            drafter.leave(row)
            assert drafter.kernels.num_answers() == len(model.answers)
        else:
            more = rng.integers(0, num_tokens, rng.integers(1, 5)).tolist()
            texts[row] = texts[row] + more
            drafter.rows.extend(row, more)
        occupied = drafter.rows.batch.occupied.nonzero()[0]
        rows = tuple(rng.permutation(occupied)[: rng.integers(1, N + 1)].tolist()) if len(occupied) else ()
        most = int(rng.integers(1, 9))
        expected = [model.draft(texts[row], len(texts[row]), owners[row], most) for row in rows]
        assert drafter.draft(most, rows) == expected
        num_drafted += sum(map(len, expected))
    assert num_drafted > 50


def test_drafts_go_on_behind_those_of_another_drafter() -> None:
    drafter = Drafter()
    drafter.answer([1, 2, 3, 4, 5], owner=7)
    drafter.enter(0, [8, 9], owner=7)
    drafts = drafter.rows.draft(lambda _: drafter.kernels.draft(), 4, before={0: [2, 3]})
    assert drafts == [[2, 3, 4, 5]]


def test_wrong_arguments_are_named() -> None:
    tensors: DraftTensors = DraftedRows().tensors
    with pytest.raises(ValueError, match="expected a power of two of tokens, got 48"):
        suffix_kernels(tensors, LIMITS._replace(max_tokens=48))
    with pytest.raises(ValueError, match="-1 answers"):
        suffix_kernels(tensors, LIMITS._replace(max_answers=-1))
    with pytest.raises(ValueError, match="call"):
        suffix_kernels(tensors._replace(call=tensors.call[:2]), LIMITS)
    kernels = suffix_kernels(tensors, LIMITS)
    for function in (lambda: kernels.enter(N, 0, 0, 0), lambda: kernels.leave(-1)):
        with pytest.raises(ValueError, match="row: expected one of 3"):
            function()
