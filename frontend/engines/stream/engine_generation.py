"""One request on its way through an engine: what is new in its n completions, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from splitserve.engine_core.errors import SplitServeError
from splitserve.frontend.engines.connection.client import EngineClient
from splitserve.frontend.engines.connection.token_relay import Relayed, RelayedStream, Route
from splitserve.frontend.engines.generation import OutputDelta
from splitserve.frontend.engines.status import PoolStats
from splitserve.frontend.engines.stream.sequence_stream import ALL_TOKENS, SequenceStream


class Generation(Protocol):
    """A request in progress; belongs to the pool's event loop, and its owner closes it.

    Attributes:
        finished: whether each completion has had its last delta.
        behind: whether the last take() has left something, and would return more now.
    """

    finished: bool
    behind: bool

    def take(self, max_tokens: int = ALL_TOKENS) -> list[OutputDelta]:
        """Return what is new, at most one delta per completion; deltas that nobody takes join.

        Args:
            max_tokens: in all deltas together; more wait for the next call.

        At most max_tokens tokens per completion are held.

        Raises:
            SplitServeError: the request failed; nothing more may be taken.
        """

    def hand_over(self, route: Route) -> RelayedStream | None:
        """Let native code write what comes next of the one completion; None if it cannot.

        Nothing may be taken before take_back(), which follows when on_ready is called.
        """

    def take_back(self) -> Relayed | None:
        """Return what native code did since hand_over(), None if nothing was handed over."""

    def close(self) -> None:
        """End on the engine what still runs; safe to call twice."""


class EngineGeneration:
    """Completions that an engine samples, one sequence each."""

    __slots__ = ("_client", "_closed", "_error", "_next", "_stats", "_streams", "behind", "finished")

    def __init__(self, client: EngineClient, streams: Sequence[SequenceStream], stats: PoolStats) -> None:
        """Take over sequences that were just opened.

        Args:
            client: the engine's.
            streams: one per completion.
            stats: of the pool, counted at the end.
        """
        self.finished = False
        self.behind = False
        self._client = client
        self._streams = streams
        self._stats = stats
        self._error: SplitServeError | None = None
        self._closed = False
        # The stream that is asked first, so that all have their turn when not all can.
        self._next = 0
        stats.requests_started += 1

    def take(self, max_tokens: int = ALL_TOKENS) -> list[OutputDelta]:
        """Return what is new; sequences that a stop string ends are ended on the engine at once."""
        deltas: list[OutputDelta] = []
        first, num_streams = self._next, len(self._streams)
        self.behind = False
        try:
            for i in range(first, first + num_streams):
                if max_tokens <= 0:
                    self._next, self.behind = i % num_streams, True
                    break
                stream = self._streams[i % num_streams]
                delta = stream.take(max_tokens)
                if delta is not None:
                    deltas.append(delta)
                    max_tokens -= len(delta.token_ids) or 1
                    self.behind = self.behind or stream.behind
                    if stream.finished:
                        self._end(stream)
        except SplitServeError as error:
            self._error = error
            raise
        return deltas

    def hand_over(self, route: Route) -> RelayedStream | None:
        """Let native code write what comes next, if there is one completion and it is plain."""
        if self._closed or len(self._streams) != 1:
            return None
        stream = self._streams[0]
        return stream.source.relayed if stream.hand_over(route) else None

    def take_back(self) -> Relayed | None:
        """Return what native code did."""
        return self._streams[0].take_back() if self._streams else None

    def close(self) -> None:
        """End on the engine what still runs."""
        if self._closed:
            return
        self._closed = True
        self._client.abort([stream.source for stream in self._streams])
        # They know whom to wake, who knows this object: a circle that reference counts would not free.
        self._streams = ()
        self._stats.count_end(finished=self.finished, failed=self._error is not None)

    def _end(self, stream: SequenceStream) -> None:
        if stream.stopped_here:
            self._client.abort([stream.source])
        self.finished = all(other.finished for other in self._streams)


class SearchGeneration:
    """Completions that a search brings all at once, run by a task of its own."""

    def __init__(
        self,
        search: Coroutine[Any, Any, list[OutputDelta]],
        on_ready: Callable[[], None],
        stats: PoolStats,
    ) -> None:
        """Begin the search.

        Args:
            search: returns all deltas.
            on_ready: called when it has ended.
            stats: of the pool, counted at the end.
        """
        self.finished = False
        self.behind = False
        self._on_ready: Callable[[], None] | None = on_ready
        self._stats = stats
        self._task = asyncio.create_task(search, name="search")
        self._task.add_done_callback(self._on_done)
        stats.requests_started += 1

    def take(self, max_tokens: int = ALL_TOKENS) -> list[OutputDelta]:
        """Return everything once it is there, however much that is: a search is never streamed."""
        if self.finished or not self._task.done():
            return []
        found = self._task.result()
        self.finished = True
        return found

    def hand_over(self, route: Route) -> RelayedStream | None:
        """Return None: there are no tokens before the end."""
        return None

    def take_back(self) -> Relayed | None:
        """Return None."""
        return None

    def close(self) -> None:
        """Cancel the search, which aborts the step that runs."""
        if self._on_ready is None:
            return
        self._on_ready = None
        # A task that the loop's end has cancelled has no exception to ask for.
        ended = self._task.done() and not self._task.cancelled()
        failed = ended and self._task.exception() is not None
        self._task.cancel()
        self._stats.count_end(finished=self.finished, failed=failed)

    def _on_done(self, task: asyncio.Task[list[OutputDelta]]) -> None:
        if not task.cancelled():
            # Asked for, so that asyncio does not miss it when nobody takes it any more.
            task.exception()
        if self._on_ready is not None:
            self._on_ready()
