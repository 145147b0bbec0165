"""Who drafts for the rows of a step, in which order, and what comes of it?

Each drafter goes on behind the drafts of those before it. What it may add is settled by its account with the
row (worker.speculation.accounts), so one that guesses badly does not hold up one that guesses well.

Where all rows pause, the engine is told for how many steps, and asks for no drafts: such steps take hardly
longer than without speculation.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from splitserve.worker.ops.columns import Int32
from splitserve.worker.sampling.step_result import RowEnds
from splitserve.worker.speculation.accounts import MAX_PAUSE, Accounts
from splitserve.worker.speculation.draft_prices import DraftPrices
from splitserve.worker.speculation.draft_sheet import DraftSheet
from splitserve.worker.speculation.drafter import Drafter
from splitserve.worker.speculation.step_times import StepPeriods, StepTimes

# That the engine may have planned before it knows what counts, see engine_core.scheduler.run_ahead.
MAX_STEPS_AHEAD = 4
# What drafting costs is not noted below so many tokens.
LEAST_PRICE = 0.02
# So long before the end of a rest nobody prepares for it.
LONG_REST = 16
TIMED_EVERY = 16


class _Turn(NamedTuple):
    """One drafter, its accounts, and int32 [max_num_seqs], a row's drafts once it has had its turn."""

    drafter: Drafter
    accounts: Accounts
    ends: Int32


class Speculator:
    """Lets drafters draft for the rows of one batch; used by the worker's thread.

    Attributes:
        max_drafts: most drafts of a row and step.
    """

    def __init__(self, sheet: DraftSheet, drafters: Sequence[Drafter], max_drafts: int) -> None:
        """Args: sheet of the batch; drafters in their order; max_drafts of a row and step."""
        num_rows = len(sheet.columns.num_drafts)
        self.max_drafts = max_drafts
        self._sheet = sheet
        self._turns = [
            _Turn(drafter, Accounts(sheet, max_drafts), np.zeros(num_rows, np.int32)) for drafter in drafters
        ]
        self._prices = DraftPrices()
        self._periods = StepPeriods()
        # By rows of a step: what a draft cost in the last one with any.
        self._last_price = [0.0] * (num_rows + 1)
        # Of the last step, as far as they were computed.
        self._num_drafts = 0
        # Steps to come in which nobody will draft; None until it is asked for.
        self._rest: int | None = 0
        # Whether the last step was looked for drafts, and there were none.
        self._is_idle = False
        # Steps without drafts that the accounts do not know of, and since the last one with any.
        self._num_passed = self._num_plain = 0
        # The column of a step in which every row decodes.
        self._ones = np.ones(num_rows, "<i4").tobytes()

    @property
    def drafts(self) -> bool:
        """Whether there are any drafters: not on ranks that are told what others draft."""
        return bool(self._turns)

    def enter(self, step: SchedulerOutput) -> None:
        """Take in the new rows of a step, of which there are some, as the batch has."""
        self._settle_passed()
        self._rest, self._is_idle = None, False
        num_rows = min(len(step.rows) // 4, len(self._last_price) - 1)
        for new in step.new_rows:
            self._sheet.enter(new)
            for turn in self._turns:
                if turn.drafter.enter(new):
                    turn.accounts.enter(new.row, num_rows, self._last_price[num_rows])
                else:
                    turn.accounts.close(new.row)

    def draft(self, step: SchedulerOutput) -> Int32 | None:
        """Draft for the rows of a step, whose changes the batch has taken in, behind their tokens.

        Args:
            step: its new rows are taken in here, see enter().

        Returns:
            int32 [max_num_seqs], by row of the step: how many it drafted, or -1 if it has ended by its drafts
            and computes nothing; None if no row has.
        """
        sheet = self._sheet
        self._num_drafts = 0
        if step.new_rows:
            self.enter(step)
        if step.max_drafts == 0 and self._num_plain > MAX_STEPS_AHEAD:
            # No row can be further than the engine knew.
            self._pass_over()
            return None
        if not sheet.begin(step):
            return None
        if step.max_drafts:
            self._settle_passed()
            self._rest, self._num_plain = None, 0
            for turn in self._turns:
                self._take_turn(turn)
            self._is_idle = sheet.num_drafts == 0
        else:
            self._pass_over()
        return sheet.columns.num_drafts if sheet.num_drafts or sheet.num_ended else None

    def passes(self, step: SchedulerOutput) -> bool:
        """Whether a step is one of a long rest, and nobody need know how long it takes; call once for each.

        Of a long rest two steps in a row are timed now and then.
        """
        rest = self._rest or 0
        if rest <= LONG_REST or rest % TIMED_EVERY < 2 or step.max_drafts or step.new_rows:
            return False
        if self._num_plain <= MAX_STEPS_AHEAD:
            return False
        self._num_drafts = 0
        self._pass_over()
        self._periods.skip()
        return True

    @property
    def known_rest(self) -> int:
        """The same as `rest`, but 0 where that would have to be worked out."""
        return self._rest or 0

    @property
    def rest(self) -> int:
        """For how many steps from now on nobody will draft for any row of the batch, unless others enter."""
        if self._rest is None:
            occupied = self._sheet.batch.occupied
            rests = [int(turn.accounts.pauses[occupied].min(initial=MAX_PAUSE)) for turn in self._turns]
            idle = self._prices.num_idle_steps(self._sheet.num_rows) if self._is_idle else 0
            self._rest = max(idle, min(rests, default=0) - self._num_passed)
        return self._rest

    def leave(self, step: SchedulerOutput) -> None:
        """Let drafters take note of the rows that leave with a step, before the batch forgets them.

        Of rows that failed it may have no tokens, but those of another request.
        """
        batch = self._sheet.batch
        rows = [
            row
            for row in unpack_int32(step.freed_rows).tolist()
            if 0 <= row < len(batch.occupied) and batch.occupied[row] and row not in batch.failures
        ]
        for turn in self._turns:
            turn.drafter.leave(rows)

    def pauses(self, method: str) -> Int32:
        """Return for how many steps rows will not be drafted for by a method, int32 [max_num_seqs]."""
        self._settle_passed()
        return next(turn.accounts.pauses for turn in self._turns if turn.drafter.method == method)

    def learn(self, rows: Int32, num_drafts: Int32, num_counted: Int32) -> list[RowEnds]:
        """Take note of what came of a step's drafts; returns who had drafted them.

        Args:
            rows: int32 [R].
            num_drafts: int32 [R], how many of its drafts were computed.
            num_counted: int32 [R], how many of these counted.
        """
        self._rest = None
        num_rows, self._num_drafts = self._sheet.num_rows, int(num_drafts.sum())
        self._last_price[num_rows] = price = self._prices.of_a_draft(num_rows, self._num_drafts)
        drafters = []
        begins = np.zeros(len(rows), np.int32)
        for turn in self._turns:
            ends = np.minimum(np.maximum(turn.ends[rows], begins), num_drafts)
            drafted = ends - begins
            # Of those behind a wrong draft nothing is learnt.
            counted = np.minimum(num_counted, ends) - begins
            reached = ((drafted > 0) & (counted >= 0)).nonzero()[0]
            if len(reached):
                turn.accounts.learn(rows[reached], drafted[reached], counted[reached], num_rows, price)
            if drafted.any():
                drafters.append(RowEnds(turn.drafter.method, turn.ends.copy()))
            begins = ends
        return drafters

    def may_end(self, step: SchedulerOutput) -> bool:
        """Whether a row of a step may have ended by its drafts."""
        return self._sheet.may_end(unpack_int32(step.rows))

    def took(self, step: SchedulerOutput, times: StepTimes, *, is_at_speed: bool = True) -> None:
        """Take note of when the step ran that was drafted for last, and whether others will take as long."""
        seconds = self._periods.of(times, only_decodes=self._only_decodes(step))
        if is_at_speed and seconds is not None:
            self._note(step, self._num_drafts, seconds)
        if step.max_drafts and self._num_drafts == 0:
            self._prices.looked(times.started - times.begun)

    def took_plainly(self, step: SchedulerOutput, seconds: float) -> None:
        """Take note of how long a step without drafts took, which may be the one before the last."""
        self._note(step, 0, seconds)

    def _note(self, step: SchedulerOutput, num_drafts: int, seconds: float) -> None:
        if self._only_decodes(step):
            self._prices.took(len(step.num_tokens) // 4, num_drafts, seconds)

    def read_ahead(self, step: SchedulerOutput, seconds: float) -> None:
        """Take note of how long a drafter read for a step before it is asked to draft."""
        if self._only_decodes(step):
            self._prices.read_ahead(len(step.num_tokens) // 4, seconds)

    def num_affordable_reads(self, most: int) -> int:
        """Return for how many steps rows that pause may be read."""
        return self._prices.num_affordable_reads(most)

    def _take_turn(self, turn: _Turn) -> None:
        """Let a drafter draft, and pay for it."""
        sheet = self._sheet
        turn.accounts.allow()
        if sheet.num_allowed:
            rows = sheet.allowed_rows()
            before, started = sheet.columns.num_drafts[rows], time.perf_counter()
            turn.drafter.draft(sheet)
            seconds = time.perf_counter() - started
            tokens = self._prices.in_tokens(sheet.num_rows, seconds) if turn.drafter.is_at_speed else 0.0
            if tokens > LEAST_PRICE:
                turn.accounts.spend(rows, tokens)
                turn.accounts.give_up(rows[sheet.columns.num_drafts[rows] == before], sheet.num_rows)
        # In a pipeline other rows have drafts that were not computed yet.
        rows = sheet.rows_of_batch()
        turn.ends[rows] = sheet.columns.num_drafts[rows]

    def _pass_over(self) -> None:
        self._num_plain += 1
        if self._turns:
            self._num_passed += 1
        if self._rest:
            self._rest -= 1

    def _settle_passed(self) -> None:
        if self._num_passed:
            for turn in self._turns:
                turn.accounts.pass_over(self._num_passed)
            self._num_passed = 0

    def _only_decodes(self, step: SchedulerOutput) -> bool:
        return step.num_tokens == self._ones[: len(step.num_tokens)]
