"""How many tokens does a drafter draft for each row? As many as have paid off lately.

A draft that counts saves a row a step; all of them make a step longer (worker.speculation.draft_prices). So
each row has an account with each drafter, in tokens: 1 for a draft that counts, less the price of every
draft.

    after a step with drafts    width                    account
    all counted                 doubled, up to the most  up to FULL; the pause is the shortest again when full
    some did                    as many as counted       up or down
    the account is overdrawn    1                        0, and a pause, which doubles each time

So a row whose text repeats itself drafts as much as it may after a few steps, and one whose text does not
loses START tokens in its first steps. Later it tries one draft after each of its longest pauses, which are so
long that the tries of all rows together take about a hundredth of the time. Where a draft costs as much as a
token, new rows begin with such a pause. What is drafted never changes a token, so nothing here has to be
exact, or the same in another run.
"""

from __future__ import annotations

import numpy as np
import torch

from splitserve.worker.ops.columns import AccountColumns, Array, Int32, allocate
from splitserve.worker.ops.decode import Recording
from splitserve.worker.ops.drafts.limits import allow_drafts
from splitserve.worker.speculation.draft_sheet import DraftSheet

START, FULL = 2.0, 4.0
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
        with Recording() as recording:
            allow_drafts(sheet.tensors, AccountColumns[torch.Tensor](*map(torch.from_numpy, columns)))
        # Says in the sheet how much the drafter may append.
        self.allow = recording.replay

    @property
    def pauses(self) -> Int32:
        """For how many steps each row pauses yet, int32 [max_num_seqs]."""
        return self._columns.pause

    def enter(self, row: int, num_rows: int, price: float) -> None:
        """Open the account of a row that enters.

        Args:
            row: of the batch.
            num_rows: of the step.
            price: of a draft, in tokens, in the last step of so many rows that had any.
        """
        columns = self._columns
        self._next_pause[row] = FIRST_PAUSE
        if price < 1:
            columns.width[row], columns.pause[row], self._account[row] = self._max_drafts, 0, START
        else:
            columns.width[row], columns.pause[row] = 1, _longest_pause(num_rows, price)
            self._account[row] = 0

    def learn(self, rows: Int32, num_drafts: Int32, num_counted: Int32, num_rows: int, price: float) -> None:
        """Take note of what came of a step's drafts.

        Args:
            rows: int32 [R].
            num_drafts: int32 [R], more than 0.
            num_counted: int32 [R], how many of these counted.
            num_rows: of the step.
            price: of a draft, in tokens.
        """
        account = np.minimum(self._account[rows] + num_counted - price * num_drafts, FULL)
        width = np.where(num_counted == num_drafts, 2 * self._columns.width[rows], num_counted)
        is_overdrawn, is_full = account < 0, account == FULL
        pause = self._next_pause[rows]
        self._columns.pause[rows] = np.where(is_overdrawn, pause, 0)
        self._columns.width[rows] = np.where(is_overdrawn, 1, width).clip(1, self._max_drafts)
        self._account[rows] = account.clip(0)
        pause = np.where(is_overdrawn, np.minimum(2 * pause, _longest_pause(num_rows, price)), pause)
        self._next_pause[rows] = np.where(is_full, FIRST_PAUSE, pause)


def _longest_pause(num_rows: int, price: float) -> int:
    # A hundred steps for each token that the rows lose by a draft each that does not count.
    return min(max(LONGEST_PAUSE, int(100 * num_rows * price)), MAX_PAUSE)
