"""What is a drafter? Someone who guesses the next tokens of rows; whatever it says, no token changes."""

from __future__ import annotations

from typing import Protocol

from splitserve.engine_core.ipc.worker_messages import NewRow
from splitserve.worker.speculation.draft_sheet import DraftSheet


class Drafter(Protocol):
    """Drafts for the rows of one batch; used by the worker's thread.

    How much it drafts for a row is settled for it, by what came of its drafts (worker.speculation.accounts).
    """

    @property
    def method(self) -> str:
        """Its name, one of engine_core.settings.speculation.METHODS."""

    def enter(self, new: NewRow) -> None:
        """Take in a row that the batch has just taken in; another request may have had it before."""

    def draft(self, sheet: DraftSheet) -> None:
        """Append drafts to rows of the step, for each as many as sheet.columns.allowed says.

        They stand behind the row's tokens and the drafts of those who drafted before: batch.tokens[row] up to
        batch.num_tokens[row] + sheet.columns.num_drafts[row]. Called only if some row is allowed any.
        """
