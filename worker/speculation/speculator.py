"""Who drafts for the rows of a step, in which order, and what comes of it?

Each drafter goes on behind the drafts of those before it. What it may add is settled by its account with the
row (worker.speculation.accounts), so one that guesses badly does not hold up one that guesses well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.wire import DraftCounts
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from splitserve.worker.ops.columns import Int32
from splitserve.worker.speculation.accounts import Accounts
from splitserve.worker.speculation.draft_prices import DraftPrices
from splitserve.worker.speculation.draft_sheet import DraftSheet
from splitserve.worker.speculation.drafter import Drafter


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
        # By rows of a step: what a draft cost in the last one with any.
        self._last_price = [0.0] * (num_rows + 1)
        # Of the last step, as far as they were computed.
        self._num_drafts = 0
        # The column of a step in which every row decodes.
        self._ones = np.ones(num_rows, "<i4").tobytes()

    def draft(self, step: SchedulerOutput) -> Int32 | None:
        """Draft for the rows of a step, whose changes the batch has taken in, behind their tokens.

        Returns:
            int32 [max_num_seqs], by row of the step: how many it drafted, or -1 if it has ended by its drafts
            and computes nothing; None if no row has.
        """
        sheet = self._sheet
        self._num_drafts = 0
        if step.new_rows:
            self._enter(step)
        if not sheet.begin(step):
            return None
        if step.max_drafts:
            for turn in self._turns:
                turn.accounts.allow()
                if sheet.num_allowed:
                    turn.drafter.draft(sheet)
                turn.ends[:] = sheet.columns.num_drafts
        return sheet.columns.num_drafts if sheet.num_drafts or sheet.num_ended else None

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
        return next(turn.accounts.pauses for turn in self._turns if turn.drafter.method == method)

    def learn(self, rows: Int32, num_drafts: Int32, num_counted: Int32) -> list[DraftCounts]:
        """Take note of what came of a step's drafts; returns who had drafted and what counted.

        Args:
            rows: int32 [R].
            num_drafts: int32 [R], how many of its drafts were computed.
            num_counted: int32 [R], how many of these counted.
        """
        num_rows, self._num_drafts = self._sheet.num_rows, int(num_drafts.sum())
        self._last_price[num_rows] = price = self._prices.of_a_draft(num_rows, self._num_drafts)
        counts = []
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
                places = begins, ends, np.minimum(num_counted, ends)
                counts.append(_count(turn.drafter.method, *places))
            begins = ends
        return counts

    def may_end(self, step: SchedulerOutput) -> bool:
        """Whether a row of a step may have ended by its drafts."""
        return self._sheet.may_end(unpack_int32(step.rows))

    def took(self, step: SchedulerOutput, seconds: float) -> None:
        """Take note of how long the step that was drafted for last took."""
        self._note(step, self._num_drafts, seconds)

    def took_plainly(self, step: SchedulerOutput, seconds: float) -> None:
        """Take note of how long a step without drafts took, which may be the one before the last."""
        self._note(step, 0, seconds)

    def _note(self, step: SchedulerOutput, num_drafts: int, seconds: float) -> None:
        if step.num_tokens == self._ones[: len(step.num_tokens)]:
            self._prices.took(len(step.num_tokens) // 4, num_drafts, seconds)

    def _enter(self, step: SchedulerOutput) -> None:
        num_rows = min(len(step.rows) // 4, len(self._last_price) - 1)
        for new in step.new_rows:
            self._sheet.enter(new)
            for turn in self._turns:
                turn.drafter.enter(new)
                turn.accounts.enter(new.row, num_rows, self._last_price[num_rows])


def _count(method: str, begins: Int32, ends: Int32, counted: Int32) -> DraftCounts:
    """Count by place behind the row's last token; the drafter's drafts are those from begins to ends."""
    places = np.arange(int(ends.max(initial=0)), dtype=np.int32)
    behind = places[:, None] >= begins
    drafted = (behind & (places[:, None] < ends)).sum(axis=1)
    return DraftCounts(method, drafted.tolist(), (behind & (places[:, None] < counted)).sum(axis=1).tolist())
