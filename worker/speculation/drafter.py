"""What is a drafter? Someone who guesses the next tokens of rows; whatever it says, no token changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.kv_cache.host_blocks import HostBlocks
from splitserve.worker.ops.columns import Int32
from splitserve.worker.speculation.draft_sheet import DraftSheet


class Drafter(Protocol):
    """Drafts for the rows of one batch; used by the worker's thread.

    How much it drafts for a row is settled for it, by what came of its drafts (worker.speculation.accounts).

    Attributes:
        is_at_speed: whether draft() took as long the last time as it will for the same from now on.
    """

    is_at_speed: bool

    @property
    def method(self) -> str:
        """Its name, one of engine_core.settings.speculation.METHODS."""

    def enter(self, new: NewRow) -> bool:
        """Take in a row that the batch has just taken in; another request may have had it before.

        Returns:
            Whether it may ever draft for it.
        """

    def leave(self, rows: Iterable[int]) -> None:
        """Take note of rows that are about to leave the batch, which has their tokens still."""

    def draft(self, sheet: DraftSheet) -> None:
        """Append drafts to rows of the step, for each as many as sheet.columns.allowed says.

        They stand behind the row's tokens and the drafts of those who drafted before: batch.tokens[row] up to
        batch.num_tokens[row] + sheet.columns.num_drafts[row]. Called only if some row is allowed any.
        """


class ModelDrafter(Drafter, Protocol):
    """A drafter with a KV cache of its own, of blocks as the batch numbers them.

    Attributes:
        host_blocks: moves blocks of its cache.
        max_pause: for how many steps a row may pause that is read all the same.
    """

    host_blocks: HostBlocks
    max_pause: int

    @property
    def has_unread(self) -> bool:
        """Whether the next read_ahead() may read of the last step, and the tokens that this draws."""

    def run_largest(self) -> None:
        """Run a pass of the largest kind, for its memory, right behind one of the model on an empty batch."""

    def follow(self, step: SchedulerOutput) -> None:
        """Take in the moves and blocks of a step, as the batch has; every step must be seen here."""

    def read_ahead(self, pauses: Callable[[], Int32], max_pause: int) -> float:
        """Read what is there for this step only, once all have drafted; returns the seconds it took.

        Args:
            pauses: returns for how many steps each row will not be drafted for, int32 [max_num_seqs].
            max_pause: for how many a row may pause that is read, at most as above.
        """

    def took(self, num_rows: int, inputs: Callable[[], StepInputs]) -> None:
        """Take note of what the model computes in this step.

        Args:
            num_rows: of the step.
            inputs: returns what is right until the next one runs.
        """
