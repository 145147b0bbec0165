"""The queue of displaced requests: which engine does each go on at, and how long does it wait?"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from splitserve.engine_core.errors import (
    EngineRequestError,
    EngineUnavailableError,
    OverloadedError,
    SplitServeError,
)
from splitserve.engine_core.process.kill_points import reach
from splitserve.engine_core.process.logs import log_event
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.failover.client_request import ClientRequest, Refusal
from splitserve.frontend.engines.failover.engine import Engine
from splitserve.frontend.engines.failover.resumption import resumption
from splitserve.frontend.engines.failover.stats import FailoverStats
from splitserve.frontend.engines.failover.trials import Trials
from splitserve.frontend.engines.time_limits import queue_timeout_error, timeout_error

logger = logging.getLogger(__name__)

# Sequences that go on before the event loop gets to run; one costs some 50 us.
MAX_PLACED_PER_TURN = 64
# An engine that rejects a sequence is asked again after this, then after twice as long, and so on.
FIRST_RETRY_S = 0.1
MAX_RETRY_S = 2.0
_NEVER_REFUSED = Refusal(0, 0.0)

End = Callable[[OpenSequence, SplitServeError], None]


class Placements:
    """Requests with displaced sequences, in order of displacement; bounded by the open sequences."""

    def __init__(
        self, engines: Sequence[Engine], trials: Trials, stats: FailoverStats, wait_s: float
    ) -> None:
        """Start without requests.

        Args:
            engines: the list is kept, and may grow.
            trials: says who has to wait although there is an engine.
            stats: counts what goes on.
            wait_s: how long a sequence waits for an engine.
        """
        self._engines = engines
        self._trials = trials
        self._stats = stats
        self._wait_s = wait_s
        self._waiting: dict[ClientRequest, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[ClientRequest]:
        return iter(list(self._waiting))

    def add(self, client: ClientRequest) -> None:
        """Queue a request with displaced sequences, unless it is queued."""
        self._waiting[client] = None

    def settle(self, client: ClientRequest) -> None:
        """Take a request off the queue if none of its sequences is displaced any more."""
        if not client.displaced:
            self._waiting.pop(client, None)

    def refused(self, client: ClientRequest, engine: Engine, now_s: float) -> None:
        """Note that an engine has rejected sequences of a request: it is not asked again for a while."""
        num_times, retry_at_s = client.refusals.get(engine, _NEVER_REFUSED)
        # Sequences that were sent together are rejected together.
        num_times += now_s >= retry_at_s
        delay_s = min(MAX_RETRY_S, FIRST_RETRY_S * 2 ** min(num_times - 1, 10))
        client.refusals[engine] = Refusal(num_times, now_s + delay_s)

    def choose(self, client: ClientRequest, now_s: float) -> Engine | None:
        """Return the least busy engine with room for all of a request, None if none takes it now."""
        refusals = client.refusals
        engines = [
            engine
            for engine in self._engines
            if engine.takes_model == client.model
            and engine.max_model_len >= client.num_tokens
            and refusals.get(engine, _NEVER_REFUSED).retry_at_s <= now_s
        ]
        return min(engines, key=lambda engine: engine.num_open, default=None)

    def expire(self, now_s: float, end: End) -> None:
        """End the sequences that have timed out, or have waited for an engine for too long."""
        for client in self:
            for sequence in list(client.displaced):
                error = _late_error(sequence, now_s)
                if error is not None:
                    client.displaced.remove(sequence)
                    end(sequence, error)
            if now_s - client.since_s >= self._wait_s:
                self._end_wait(client, now_s, end)
            self.settle(client)

    def place_all(self, now_s: float, end: End) -> bool:
        """Place as much as one turn may, ending what fails; return whether there is more."""
        if not any(engine.takes_model for engine in self._engines):
            return False
        num_placed = 0
        for client in self:
            if num_placed >= MAX_PLACED_PER_TURN:
                return True
            if not self._trials.holds(client):
                num_placed += self._place(client, now_s, end)
        return False

    def _place(self, client: ClientRequest, now_s: float, end: End) -> int:
        """Place the sequences of one request, those of a prompt together; return how many went on."""
        waiting, client.displaced = client.displaced, []
        num_placed = 0
        for _, group in groupby(waiting, key=lambda sequence: id(sequence.request.prompt_token_ids)):
            sequences = list(group)
            engine = self.choose(client, now_s)
            try:
                if engine is None or not self._resume(client, engine, sequences, now_s):
                    client.displaced += sequences
                    continue
            except Exception as error:
                # A bug of ours that one request brings about must not strand it, nor those behind it.
                _end_failed(engine, sequences, error, end)
            else:
                num_placed += len(sequences)
        self.settle(client)
        return num_placed

    def _resume(
        self, client: ClientRequest, engine: Engine, sequences: list[OpenSequence], now_s: float
    ) -> bool:
        reach("frontend.resuming")
        if client in self._trials:
            self._trials.watch(client, sequences)
        try:
            engine.adopt(sequences, [resumption(sequence, now_s) for sequence in sequences])
        except (EngineUnavailableError, OverloadedError):
            self.refused(client, engine, now_s)
            return False
        for sequence in sequences:
            sequence.place = engine
        client.engine = engine
        self._stats.count(client, sequences, now_s)
        reach("frontend.resumed")
        return True

    def _end_wait(self, client: ClientRequest, now_s: float, end: End) -> None:
        """Give up a request that has waited for too long, unless it can go on now."""
        if self.choose(client, now_s) is None:
            # The answer may still end before an engine with less room cuts it short.
            client.num_tokens = 0
        has_engine = self.choose(client, now_s) is not None
        if has_engine and self._trials.awaits_turn(client):
            # Held back by us, with an engine ready: no reason for an error.
            self._trials.let_go(client)
        if client.refusals or self._trials.holds(client) or not has_engine:
            self._give_up(client, end)

    def _give_up(self, client: ClientRequest, end: End) -> None:
        error = client.error
        assert error is not None, "set when it was displaced"
        if self._wait_s and isinstance(error, EngineUnavailableError):
            text = f"{error}; no engine went on with the request within {self._wait_s:g} s"
            error = EngineUnavailableError(text)
        self._stats.given_up += len(client.displaced)
        client.end_displaced(error, end)


def _late_error(sequence: OpenSequence, now_s: float) -> SplitServeError | None:
    if sequence.deadline_s <= now_s:
        return timeout_error(sequence.request.timeout_s)
    if sequence.queue_deadline_s <= now_s:
        return queue_timeout_error(sequence.request.queue_timeout_s)
    return None


def _end_failed(engine: Engine | None, sequences: Sequence[OpenSequence], error: Exception, end: End) -> None:
    name = sequences[0].request.request_id
    log_event(logger, logging.ERROR, "request cannot be resumed", error, request=name)
    if engine is not None:
        engine.abort(sequences)
    for sequence in sequences:
        end(sequence, EngineRequestError("an internal error kept the request from going on"))
