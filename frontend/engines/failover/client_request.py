"""The sequences of one client's request, wherever they run: the host of its streams and beams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import NamedTuple, Protocol

from splitserve.engine_core.errors import SplitServeError
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.frontend.engines.connection.displacement import DisplacedBy
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.failover.engine import Engine


class RequestOwner(Protocol):
    """What a request asks of its owner (frontend.engines.failover.owner)."""

    def open(
        self, client: ClientRequest, requests: Sequence[AddRequest], wake: Callable[[], None]
    ) -> list[OpenSequence]:
        """Open sequences of the request; see ClientRequest.open()."""

    def abort(self, client: ClientRequest, sequences: Iterable[OpenSequence]) -> None:
        """Abort sequences of the request; see ClientRequest.abort()."""


class Refusal(NamedTuple):
    """How an engine has refused a request.

    Attributes:
        num_times: how often in a row.
        retry_at_s: monotonic time before which it is not asked again.
    """

    num_times: int
    retry_at_s: float


class ClientRequest:
    """One client's request, the unit that is suspected, and whose migrations are counted.

    Attributes:
        model: identity of its model (ServedModel.identity).
        engine: that took its last sequences; asked first for more, since its prefix cache may hold them.
        num_tokens: that its longest sequence may come to; an engine with less room would cut it short.
        numerics: of the first engine; tokens of an engine with others may differ in the last bits.
        num_deaths: engines that were lost under it.
        displaced: its sequences that are open nowhere.
        cause: why they are; REJECTED if no engine has run them yet.
        error: what they end with if they cannot go on.
        since_s: monotonic time at which they were sent, or displaced since then.
        refusals: the engines that have rejected them since then, at most all of them.
    """

    __slots__ = (
        "_owner",
        "cause",
        "displaced",
        "engine",
        "error",
        "model",
        "num_deaths",
        "num_tokens",
        "numerics",
        "refusals",
        "since_s",
    )

    def __init__(self, owner: RequestOwner, model: str, engine: Engine) -> None:
        """Begin a request; open() sends its sequences to the engine."""
        self._owner = owner
        self.model = model
        self.engine = engine
        self.numerics = engine.numerics
        self.num_deaths = 0
        self.num_tokens = 0
        self.displaced: list[OpenSequence] = []
        self.cause = DisplacedBy.REJECTED
        self.error: SplitServeError | None = None
        self.since_s = 0.0
        self.refusals: dict[Engine, Refusal] = {}

    def open(self, requests: Sequence[AddRequest], wake: Callable[[], None]) -> list[OpenSequence]:
        """Open sequences on one engine, all of them or none.

        Args:
            requests: one per sequence.
            wake: called by the event loop when something has arrived for any of them.

        Raises:
            EngineUnavailableError, OverloadedError: none was opened.
        """
        return self._owner.open(self, requests, wake)

    def end_displaced(
        self, error: SplitServeError, end: Callable[[OpenSequence, SplitServeError], None]
    ) -> None:
        """End all displaced sequences with an error, each by a call of end()."""
        ended, self.displaced = self.displaced, []
        for sequence in ended:
            # A separate error object each: a request may add to its own.
            end(sequence, copy(error))

    def abort(self, sequences: Iterable[OpenSequence]) -> None:
        """Abort those of the sequences that are still open, without calling their `wake`."""
        self._owner.abort(self, sequences)
