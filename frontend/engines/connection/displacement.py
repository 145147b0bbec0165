"""What becomes of open sequences whose engine no longer runs them, and who is told?"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from copy import copy
from typing import Protocol

from splitserve.engine_core.errors import SplitServeError
from splitserve.frontend.engines.connection.open_sequence import OpenSequence


class DisplacedBy(enum.Enum):
    """Why an engine no longer runs a sequence; the values are labels of metrics.

    DISCONNECTED: the connection broke; SILENT: nothing was heard for too long; RESTARTED: another life of the
    engine answers; HANDED_OVER: it gave its sequences back, or has dropped us and lives; REJECTED: it did
    not take the sequence; GARBLED: what it sent was lost or damaged on the way.
    """

    DISCONNECTED = "disconnected"
    SILENT = "silent"
    RESTARTED = "restarted"
    HANDED_OVER = "handed_over"
    REJECTED = "rejected"
    GARBLED = "garbled"

    @property
    def is_death(self) -> bool:
        """Whether the engine may have died of one of its sequences."""
        return self in _DEATHS


_DEATHS = (DisplacedBy.DISCONNECTED, DisplacedBy.SILENT, DisplacedBy.RESTARTED)


class SequenceOwner(Protocol):
    """Takes the sequences that an engine no longer runs; called by its session in the middle of an event."""

    def displaced(
        self, sequences: Sequence[OpenSequence], cause: DisplacedBy, error: SplitServeError
    ) -> None:
        """Take sequences, which are open nowhere from now on; their table will notify their streams.

        Args:
            sequences: may be none, for an engine that had no sequence open.
            cause: what happened.
            error: what to end them with if they cannot go on.
        """

    def returned(self, *, same_life: bool) -> None:
        """Note that the engine is ready again: the same life, which was only out of reach, or a new one."""


class NoOwner:
    """Ends displaced sequences with the error."""

    def displaced(
        self, sequences: Sequence[OpenSequence], cause: DisplacedBy, error: SplitServeError
    ) -> None:
        """End them all."""
        for sequence in sequences:
            # A separate error object each: a request may add to its own.
            sequence.error = copy(error)

    def returned(self, *, same_life: bool) -> None:
        """Do nothing."""
