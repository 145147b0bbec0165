"""What the owner of open requests knows of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.frontend.engines.connection.open_sequence import OpenSequence


class Engine(Protocol):
    """One engine of the pool; compared by identity."""

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine, so that a connection breaks only when a process ends."""

    @property
    def takes_model(self) -> str | None:
        """Identity of the model for which it accepts requests now; None if it accepts none."""

    @property
    def num_rows(self) -> int:
        """Number of sequences, of all frontends, that it runs at once; more than these wait in its queue."""

    @property
    def max_model_len(self) -> int:
        """Most tokens that a sequence of its model may have there, those of the prompt included."""

    @property
    def num_open(self) -> int:
        """Number of this frontend's sequences that are open on it."""

    @property
    def numerics(self) -> str:
        """What decides the last bit of its results (ModelInfo.numerics)."""

    def open(self, requests: Sequence[AddRequest], wake: Callable[[], None]) -> list[OpenSequence]:
        """Send new sequences of one request, all of them or none.

        Raises:
            EngineUnavailableError, OverloadedError: none was sent.
        """

    def adopt(self, sequences: Sequence[OpenSequence], requests: Sequence[AddRequest]) -> None:
        """Continue displaced sequences of one request, all of them or none.

        Raises:
            EngineUnavailableError, OverloadedError: none was sent.
        """

    def abort(self, sequences: Iterable[OpenSequence]) -> None:
        """Abort those of the sequences that are still open."""
