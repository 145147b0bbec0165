"""A row drafts as much as has paid off: more where drafts count, hardly any where they do not."""

from __future__ import annotations

import time

import numpy as np
import pytest

from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.engine_core.settings.speculation import Speculation
from splitserve.worker.batch.input_batch import BatchLimits, InputBatch
from splitserve.worker.speculation.accounts import LONGEST_PAUSE
from splitserve.worker.speculation.drafters import make_speculator
from splitserve.worker.speculation.step_times import StepTimes
from tests.worker.sampling.rows import sampler_of

MAX_DRAFTS = 8
# What follows the last two tokens is known.
PROMPT = [5, 6, *range(20, 36), 5, 6]
ONE = pack_int32([0])


class Row:
    """A row that stays where it is, and is asked for drafts again and again."""

    def __init__(self, max_num_computed_tokens: int = 1000) -> None:
        limits = BatchLimits(2, 64, 64, 4, 16, 50)
        self.batch = InputBatch(limits, [0])
        self.speculator = make_speculator(
            self.batch, sampler_of(self.batch).grammars, Speculation(("ngram",), MAX_DRAFTS, 2, 4), 64
        )
        self._new = NewRow(
            0,
            pack_int32(PROMPT),
            len(PROMPT),
            len(PROMPT) - 1,
            pack_int32(range(16)),
            SequenceSampling(seed=0),
            max_num_computed_tokens=max_num_computed_tokens,
        )
        self.enter()

    def enter(self) -> None:
        freed = ONE if self.batch.occupied[0] else b""
        step = SchedulerOutput(1, ONE, pack_int32([1]), [self._new], freed, max_drafts=MAX_DRAFTS)
        self.batch.apply(step)
        self.speculator.draft(step)

    def draft(self) -> int:
        counts = self.speculator.draft(SchedulerOutput(2, ONE, pack_int32([1]), max_drafts=MAX_DRAFTS))
        return 0 if counts is None else int(counts[0])

    def learn(self, num_drafts: int, num_counted: int) -> None:
        # Whatever was drafted last, as if by prompt lookup.
        self.speculator._turns[-1].ends[0] = num_drafts
        self.speculator.learn(*(np.array([each], np.int32) for each in (0, num_drafts, num_counted)))

    def know_steps(self) -> None:
        """Steps without drafts take a millisecond."""
        plain = SchedulerOutput(1, ONE, pack_int32([1]))
        for i in range(1, 3):
            self.speculator.draft(plain)
            self.speculator.took(plain, StepTimes(0.001 * i, 0.001 * i, 0.001 * (i + 1)))

    def steps_until_drafts(self) -> int:
        """Steps without drafts, before the one that has some."""
        pauses = 0
        while self.draft() == 0:
            pauses += 1
        return pauses


def test_where_a_draft_costs_a_token_pauses_are_long_and_new_rows_begin_with_one() -> None:
    row = Row()
    drafted = SchedulerOutput(1, ONE, pack_int32([1]))
    row.know_steps()
    num_drafts = row.draft()
    row.learn(num_drafts, num_drafts)
    row.speculator.took(drafted, StepTimes(0.003, 0.003, 0.004 + 0.003 * num_drafts))
    row.draft()
    row.learn(num_drafts, num_drafts)
    # Of 3 tokens, and so 12 times as long as one of a quarter.
    assert row.steps_until_drafts() == 48
    row.enter()
    # The step that it enters with is one of 300.
    assert row.steps_until_drafts() == 299


def test_a_row_drafts_as_many_as_counted_and_twice_as_many_when_all_did() -> None:
    row = Row()
    assert row.draft() == MAX_DRAFTS
    row.learn(MAX_DRAFTS, 2)
    assert row.draft() == 2
    row.learn(2, 2)
    assert row.draft() == 4
    row.learn(4, 4)
    assert row.draft() == MAX_DRAFTS
    row.learn(MAX_DRAFTS, MAX_DRAFTS)
    assert row.draft() == MAX_DRAFTS


def test_pauses_of_a_row_whose_drafts_never_count_grow_up_to_the_longest() -> None:
    row = Row()
    row.draft()
    row.learn(MAX_DRAFTS, 0)
    pauses = []
    for _ in range(8):
        pauses.append(row.steps_until_drafts())
        row.learn(1, 0)
    assert pauses == [0, 4, 8, 16, 32, 64, LONGEST_PAUSE, LONGEST_PAUSE]


def test_success_makes_pauses_short_again_and_a_new_row_starts_afresh() -> None:
    row = Row()
    for _ in range(6):
        row.learn(MAX_DRAFTS, 0)
    assert row.steps_until_drafts() > 16
    for _ in range(3):
        row.learn(2, 2)
    # The account is full: it takes three of these to overdraw it.
    for _ in range(3):
        row.learn(MAX_DRAFTS, 0)
    assert row.steps_until_drafts() == 4
    row.learn(MAX_DRAFTS, 0)
    row.enter()
    assert row.draft() == MAX_DRAFTS


def test_steps_of_a_rest_ask_for_no_drafts_and_count_for_the_pauses() -> None:
    row = Row()
    for _ in range(5):
        row.learn(MAX_DRAFTS, 0)
    # Of pauses of 4, 8, 16 and 32 steps.
    assert row.speculator.rest == 32
    for left in range(31, 2, -1):
        assert row.speculator.draft(SchedulerOutput(2, ONE, pack_int32([1]))) is None
        assert row.speculator.rest == row.speculator.known_rest == left
    assert row.speculator.pauses("ngram")[0] == 3
    # Planned before the engine knew of the rest.
    assert row.steps_until_drafts() == 3
    assert row.speculator.known_rest == 0
    row.speculator.draft(SchedulerOutput(2, ONE, pack_int32([1])))
    row.enter()
    assert row.speculator.rest == 0


def test_what_it_takes_to_draft_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row()
    row.know_steps()
    clock = iter(range(100))
    # Every draft takes as long as three steps.
    monkeypatch.setattr(time, "perf_counter", lambda: 0.003 * next(clock))
    assert row.draft() == MAX_DRAFTS
    row.learn(MAX_DRAFTS, 1)
    assert row.steps_until_drafts() == 52


def test_who_drafts_in_vain_for_all_is_not_tried_on_each_new_row() -> None:
    row = Row()
    for _ in range(20):
        row.enter()
        assert row.draft() == MAX_DRAFTS
        row.learn(MAX_DRAFTS, 0)
        if row.speculator._turns[-1].accounts._worth == 0:
            break
    row.enter()
    assert row.steps_until_drafts() == LONGEST_PAUSE - 1
    row.learn(1, 0)
    assert row.steps_until_drafts() == LONGEST_PAUSE
    # Some that count, and the next row begins with what they are worth.
    row.learn(2, 2)
    row.enter()
    assert row.draft() == MAX_DRAFTS


def test_a_row_that_has_ended_is_marked() -> None:
    row = Row(max_num_computed_tokens=len(PROMPT) - 1)
    assert row.draft() == -1


def test_a_malformed_step_is_left_to_the_batch() -> None:
    row = Row()
    assert row.speculator.draft(SchedulerOutput(1, ONE, b"", max_drafts=2)) is None
    assert row.speculator.draft(SchedulerOutput(1, ONE * 3, ONE * 3, max_drafts=2)) is None


def test_whose_drafts_a_row_has_is_not_forgotten_in_steps_of_others() -> None:
    row = Row()
    count = row.draft()
    assert count > 0
    # As in a pipeline, where a row's drafts are computed in a later step than they are made.
    row.speculator.draft(SchedulerOutput(3, b"", b"", max_drafts=MAX_DRAFTS))
    (drafter,) = row.speculator.learn(*(np.array([each], np.int32) for each in (0, count, count)))
    assert (drafter.method, drafter.ends[0]) == ("ngram", count)
