"""The owner of all open sequences: on which engine each goes on when its own is lost; no I/O.

    state of a sequence    open on an engine                         displaced
    lost with its engine   -> displaced; too many deaths: ended      -
    handed over            -> displaced                              -
    rejected               -> displaced, its engine waits            -
    an engine is ready     -                                         -> open there, unless it is held
    its wait is over       -                                         ended: 503, or what it was rejected with
    its timeout is over    (the engine ends it)                      ended: 504
    engines died of it     -> ended: 500 request_unsafe              ended: 500 request_unsafe
    aborted                ended                                     ended

A sequence keeps its object on the way: it enters another engine's table under a new handle, with the tokens
so far as given, and its stream notices a pause. Losses count towards max_migrations and for suspicion
(frontend.engines.failover.trials), hand-overs and rejections for neither.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence, Set
from copy import copy
from itertools import islice
from math import inf
from typing import NamedTuple

from splitserve.engine_core.errors import (
    EngineUnavailableError,
    SplitServeError,
    UnsafeRequestError,
)
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.process.logs import log_event
from splitserve.engine_core.suspects import Death
from splitserve.frontend.engines.connection.displacement import DisplacedBy
from splitserve.frontend.engines.connection.open_sequence import OpenSequence, Place
from splitserve.frontend.engines.failover.client_request import ClientRequest
from splitserve.frontend.engines.failover.engine import Engine
from splitserve.frontend.engines.failover.placements import Placements
from splitserve.frontend.engines.failover.stats import FailoverStats
from splitserve.frontend.engines.failover.trials import Trials

logger = logging.getLogger(__name__)

# Streams notified before the event loop gets to run.
MAX_WAKES_PER_TURN = 32
# How soon pump() wants to be called again while something waits, and while requests are on trial.
TICK_S = 0.25
TRIAL_TICK_S = 0.05


class _Loss(NamedTuple):
    """An engine that was lost, with these requests."""

    death: Death
    present: list[ClientRequest]


class Failover:
    """Places displaced sequences; belongs to one event loop, and is told of events and the time.

    Attributes:
        stats: what has happened so far.
        on_work: called when pump() has something to do.
    """

    def __init__(
        self, engines: Sequence[Engine], clock: Callable[[], float], *, max_migrations: int, wait_s: float
    ) -> None:
        """Start without requests.

        Args:
            engines: the list is kept, and may grow.
            clock: monotonic, in seconds.
            max_migrations: engines that may be lost under a request before it ends.
            wait_s: how long a displaced sequence waits for an engine.
        """
        self.stats = FailoverStats()
        self.on_work: Callable[[], None] = _ignore
        self._clock = clock
        self._max_migrations = max_migrations
        self._wait_s = wait_s
        self._trials = Trials()
        self._placements = Placements(engines, self._trials, self.stats, wait_s)
        # The last loss of each engine that has not come back.
        self._losses: dict[Engine, _Loss] = {}
        self._to_wake: dict[Callable[[], None], None] = {}
        # Many may wait, and pump() is called once per turn of the loop while there is something to place.
        self._next_check_s = 0.0
        self._closing: SplitServeError | None = None

    @property
    def num_displaced(self) -> int:
        """Number of sequences that are between two engines."""
        return sum(len(client.displaced) for client in self._placements)

    # --- requests ---

    def begin(self, model: str, engine: Engine) -> ClientRequest:
        """Return the host of a new request, whose first sequences go to an engine.

        Args:
            model: its identity.
            engine: accepts requests for it.
        """
        return ClientRequest(self, model, engine)

    def open(
        self, client: ClientRequest, requests: Sequence[AddRequest], wake: Callable[[], None]
    ) -> list[OpenSequence]:
        """Open sequences; if the engine that took the request is lost, they wait for another one.

        Raises:
            EngineUnavailableError, OverloadedError: as Engine.open().
        """
        if self._closing is not None:
            raise copy(self._closing)
        now_s = self._clock()
        client.since_s, client.refusals = now_s, {}
        limit = client.engine.max_model_len
        client.num_tokens = max((_most_tokens(request, limit) for request in requests), default=0)
        engine: Engine | None = client.engine
        if client.engine.takes_model != client.model:
            engine = self._placements.choose(client, now_s)
        if engine is not None:
            client.engine = engine
            sequences = engine.open(requests, wake)
        elif self._wait_s:
            sequences = [OpenSequence(request, wake) for request in requests]
            client.error = EngineUnavailableError("no engine is ready")
            client.displaced += sequences
            self._enqueue(client)
        else:
            raise EngineUnavailableError("no engine is ready")
        for sequence in sequences:
            sequence.host, sequence.place = client, engine
            request = sequence.request
            if request.timeout_s:
                sequence.deadline_s = now_s + request.timeout_s
            if request.queue_timeout_s and not request.continues:
                sequence.queue_deadline_s = now_s + request.queue_timeout_s
        return sequences

    def abort(self, client: ClientRequest, sequences: Iterable[OpenSequence]) -> None:
        """Abort those of the sequences that are still open."""
        gone: dict[int, OpenSequence] = {}
        by_place: dict[Place, list[OpenSequence]] = {}
        for sequence in sequences:
            if sequence.place is None:
                gone[id(sequence)] = sequence
            elif not sequence.has_ended:
                by_place.setdefault(sequence.place, []).append(sequence)
                sequence.place = None
        for place, each in by_place.items():
            place.abort(each)
        if client.displaced and gone:
            client.displaced = [sequence for sequence in client.displaced if id(sequence) not in gone]
            self._placements.settle(client)

    # --- events ---

    def displaced(
        self, engine: Engine, sequences: Sequence[OpenSequence], cause: DisplacedBy, error: SplitServeError
    ) -> None:
        """Take sequences that an engine no longer runs; pump() places them."""
        if not sequences:
            return
        now_s = self._clock()
        if cause.is_death:
            # Before anything changes: who got on since the last look is not suspected.
            self._trials.look()
        clients = {_client_of(sequence): None for sequence in sequences}
        for sequence in sequences:
            sequence.place = None
            if cause is not DisplacedBy.REJECTED:
                sequence.was_displaced, sequence.queue_deadline_s = True, inf
            _client_of(sequence).displaced.append(sequence)
        for client in clients:
            client.error = error
            if cause is DisplacedBy.REJECTED:
                self._placements.refused(client, engine, now_s)
            else:
                client.cause = cause
                client.since_s, client.refusals = now_s, {}
            self._enqueue(client)
        if cause is not DisplacedBy.REJECTED:
            num, name = len(sequences), cause.value
            log_event(logger, logging.WARNING, "sequences displaced", cause=name, num=num, detail=str(error))
        if cause.is_death:
            # Over a network, what cannot be reached may live.
            death = Death(is_certain=engine.is_local and cause is DisplacedBy.DISCONNECTED)
            self._losses[engine] = _Loss(death, list(clients))
            self._end_unsafe(self._trials.died(list(clients), death, _unseen(engine, sequences)))
        if cause.is_death or cause is DisplacedBy.GARBLED:
            self._count_deaths(clients)
        if self._closing is not None:
            self.close(self._closing)

    def returned(self, engine: Engine, *, same_life: bool) -> None:
        """Note that an engine is ready again; if it had not died, nobody is to blame."""
        loss = self._losses.pop(engine, None)
        if loss is not None and same_life:
            self._trials.take_back(loss.death)
            for client in loss.present:
                client.num_deaths = max(0, client.num_deaths - 1)
        elif loss is not None:
            self._trials.look()
            self._end_unsafe(self._trials.confirm(loss.death))
        self.on_work()

    def pump(self) -> float | None:
        """Place what can be placed, end what has waited too long, and notify streams; a bounded amount.

        Returns:
            After how many seconds to call it again; None if not before on_work().
        """
        now_s = self._clock()
        if now_s >= self._next_check_s:
            self._next_check_s = now_s + TRIAL_TICK_S
            self._placements.expire(now_s, self._end_one)
            self._trials.look()
        is_behind = self._placements.place_all(now_s, self._end_one)
        for wake in list(islice(self._to_wake, MAX_WAKES_PER_TURN)):
            del self._to_wake[wake]
            wake()
        if is_behind or self._to_wake:
            return 0.0
        if self._trials.num_held:
            return TRIAL_TICK_S
        return TICK_S if self._placements or self._trials else None

    def close(self, error: SplitServeError) -> None:
        """End all displaced sequences with an error, and notify their streams."""
        self._closing = error
        for client in self._placements:
            self._end(client, error)
        while self._to_wake:
            wake, _ = self._to_wake.popitem()
            wake()

    # --- inside ---

    def _enqueue(self, client: ClientRequest) -> None:
        self._placements.add(client)
        self._next_check_s = 0.0
        self.on_work()

    def _end_unsafe(self, unsafe: Iterable[ClientRequest]) -> None:
        for client in unsafe:
            self.stats.unsafe_requests += 1
            name = client.displaced[0].request.request_id
            log_event(logger, logging.ERROR, "unsafe request given up", request=name)
            message = "engines ended while they ran this request, which is not tried again"
            self._end(client, UnsafeRequestError(message))

    def _count_deaths(self, clients: Iterable[ClientRequest]) -> None:
        for client in clients:
            client.num_deaths += 1
            if client.num_deaths > self._max_migrations and client.displaced:
                assert client.error is not None, "set when it was displaced"
                error = client.error
                if self._max_migrations:
                    num = client.num_deaths
                    error = EngineUnavailableError(f"{num} engines were lost under this request: {error}")
                self.stats.given_up += len(client.displaced)
                self._end(client, error)

    def _end(self, client: ClientRequest, error: SplitServeError) -> None:
        client.end_displaced(error, self._end_one)
        self._placements.settle(client)

    def _end_one(self, sequence: OpenSequence, error: SplitServeError) -> None:
        sequence.error = error
        self._to_wake[sequence.wake] = None
        self.on_work()


def _unseen(engine: Engine, sequences: Sequence[OpenSequence]) -> Set[ClientRequest]:
    """Return the requests of a lost engine that may only have waited in its queue."""
    if len(sequences) <= engine.num_rows:
        return frozenset()
    have_run = {_client_of(sequence) for sequence in sequences if sequence.is_running}
    return {_client_of(sequence) for sequence in sequences} - have_run


def _most_tokens(request: AddRequest, max_model_len: int) -> int:
    """Return how long a sequence may get on its engine, prompt and output."""
    max_tokens = request.sampling.max_tokens
    num_prompt_tokens = len(request.prompt_token_ids) // 4
    return max_model_len if max_tokens is None else min(max_model_len, num_prompt_tokens + max_tokens)


def _client_of(sequence: OpenSequence) -> ClientRequest:
    assert isinstance(sequence.host, ClientRequest), "opened by the owner"
    return sequence.host


def _ignore() -> None:
    pass
