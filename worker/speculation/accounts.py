"""How many tokens does a drafter draft for each row? As many as have paid off lately.

A draft that counts saves a row a step; all of them make a step longer, and somebody has to make them
(worker.speculation.draft_prices). So each row has an account with each drafter, in tokens: 1 for a draft that
counts, less the price of every draft and of making it.

    after a step with drafts    width                    account
    all counted                 doubled, up to the most  up to FULL; the pause is the shortest again when full
    some did                    as many as counted       up or down
    the account is overdrawn    1                        0, and a pause, which doubles each time

So a row whose text repeats itself drafts as much as it may after a few steps, and one whose text does not
loses START tokens in its first steps. Later it tries one draft after each of its longest pauses, which are so
long that the tries of all rows together take about a hundredth of the time.

What new rows may lose, other rows have gained: the worth of a drafter is what all rows have gained by it
lately, from MIN_WORTH to MAX_WORTH. Where it is used up, or a draft costs as much as a token, rows begin with
one of the longest pauses, and make no shorter ones. What is drafted never changes a token, so nothing here
has to be exact, or the same in another run.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from splitserve.worker.ops.columns import AccountColumns, Array, Index, Int32, allocate
from splitserve.worker.ops.decode import Recording
from splitserve.worker.ops.drafts.limits import allow_drafts
from splitserve.worker.speculation.draft_sheet import DraftSheet

START, FULL = 2.0, 4.0
MIN_WORTH, MAX_WORTH = -8.0, 32.0
# Of a row whose draft in vain cost a quarter of a token, or less; of dearer ones, so much longer.
FIRST_PAUSE = 4
# Of a row alone whose drafts cost a token each, or less. In steps, as all pauses.
LONGEST_PAUSE = 128
MAX_PAUSE = 2**20


class Accounts:
    """The accounts of all rows with one drafter; used by the worker's thread."""

    def __init__(self, sheet: DraftSheet, max_drafts: int) -> None:
        """Args: sheet is extended by the drafter; max_drafts of a row and step."""
        num_rows = len(sheet.columns.num_drafts)
        self._max_drafts = max_drafts
        self._columns = columns = allocate(AccountColumns[Array], num_rows)
        self._account = np.zeros(num_rows, np.float32)
        self._next_pause = np.zeros(num_rows, np.int32)
        # What each row's last drafts cost, beside the time they add to a step.
        self._spent = np.zeros(num_rows, np.float32)
        self._worth = MAX_WORTH
        with Recording() as recording:
            allow_drafts(sheet.tensors, AccountColumns[torch.Tensor](*map(torch.from_numpy, columns)))
        # Says in the sheet how much the drafter may append.
        self.allow = recording.replay

    @property
    def pauses(self) -> Int32:
        """For how many steps each row pauses yet, int32 [max_num_seqs]."""
        return self._columns.pause

    def pass_over(self, num_steps: int) -> None:
        """Take note of steps that did not ask for drafts."""
        np.maximum(self._columns.pause - np.int32(num_steps), 0, out=self._columns.pause)

    def enter(self, row: int, num_rows: int, price: float) -> None:
        """Open the account of a row that enters.

        Args:
            row: of the batch.
            num_rows: of the step.
            price: of a draft, in tokens, in the last step of so many rows that had any.
        """
        columns = self._columns
        self._next_pause[row] = FIRST_PAUSE
        if price < 1 and self._worth > 0:
            columns.width[row], columns.pause[row] = self._max_drafts, 0
            self._account[row] = min(START, self._worth)
        else:
            columns.width[row], self._account[row] = 1, 0
            columns.pause[row] = _longest_pauses(num_rows, np.array([price], np.float32))[0]

    def close(self, row: int) -> None:
        """Let a row never draft."""
        self._columns.width[row], self._columns.pause[row] = 0, MAX_PAUSE

    def spend(self, rows: Int32, tokens: float) -> None:
        """Take note of what it cost to draft for rows, whether or not there are drafts.

        Args:
            rows: int32 [R], more than none; then give_up() or learn() is called for each.
            tokens: the price of all.
        """
        self._worth = max(MIN_WORTH, self._worth - tokens)
        index = rows.astype(np.intp)
        self._spent[index] = each = tokens / len(rows)
        self._account[index] -= np.float32(each)

    def give_up(self, rows: Int32, num_rows: int) -> None:
        """Let rows that cost something and drafted nothing pause, if their accounts are overdrawn."""
        index = rows.astype(np.intp)
        index = index[self._account[index] < 0]
        self._pause(index, num_rows, self._spent[index])

    def learn(self, rows: Int32, num_drafts: Int32, num_counted: Int32, num_rows: int, price: float) -> None:
        """Take note of what came of a step's drafts.

        Args:
            rows: int32 [R].
            num_drafts: int32 [R], more than 0.
            num_counted: int32 [R], how many of these counted.
            num_rows: of the step.
            price: of a draft, in tokens.
        """
        index = rows.astype(np.intp)
        gained = num_counted - np.float32(price) * num_drafts
        self._worth = min(max(MIN_WORTH, self._worth + float(gained.sum())), MAX_WORTH)
        self._account[index] = account = np.minimum(self._account[index] + gained, FULL)
        width = np.where(num_counted == num_drafts, 2 * self._columns.width[index], num_counted)
        self._columns.width[index] = width.clip(1, self._max_drafts)
        self._columns.pause[index] = 0
        self._next_pause[index[account == FULL]] = FIRST_PAUSE
        overdrawn = index[account < 0]
        if len(overdrawn):
            self._pause(overdrawn, num_rows, price + self._spent[overdrawn])

    def _pause(self, index: Index, num_rows: int, prices: npt.NDArray[np.float32]) -> None:
        """Let rows [n] pause, each of which lost so many tokens by a draft that did not count."""
        longest = _longest_pauses(num_rows, prices)
        pause = longest
        if self._worth > 0:
            pause = np.maximum(self._next_pause[index], (4 * FIRST_PAUSE * prices).astype(np.int32))
        self._columns.width[index], self._columns.pause[index], self._account[index] = 1, pause, 0
        self._next_pause[index] = np.minimum(2 * pause, longest)


def _longest_pauses(num_rows: int, prices: npt.NDArray[np.float32]) -> Int32:
    """Return a hundred steps for each token that the rows lose by a draft each that does not count."""
    pauses: Int32 = (100 * num_rows * prices).clip(LONGEST_PAUSE, MAX_PAUSE).astype(np.int32)
    return pauses
