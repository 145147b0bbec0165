"""One request on its way through an engine: what is new in its n sequences, and its end."""

from __future__ import annotations

from collections.abc import Sequence

from engine_core.errors import SplitServeError
from frontend.engine_client import EngineClient
from frontend.generation import OutputDelta
from frontend.pool_status import PoolStats
from frontend.stream import SequenceStream


class Generation:
    """The sequences of one request; belongs to the pool's event loop, and its owner closes it.

    Attributes:
        finished: whether each sequence has had its last delta.
    """

    __slots__ = ("_client", "_closed", "_failed", "_stats", "_streams", "finished")

    def __init__(self, client: EngineClient, streams: Sequence[SequenceStream], stats: PoolStats) -> None:
        """Take over sequences that were just opened.

        Args:
            client: the engine's.
            streams: one per completion.
            stats: of the pool, counted at the end.
        """
        self.finished = False
        self._client = client
        self._streams = streams
        self._stats = stats
        self._failed = False
        self._closed = False
        stats.requests_started += 1

    def take(self) -> list[OutputDelta]:
        """Return what is new, at most one delta per sequence; deltas that nobody takes join.

        At most max_tokens tokens per sequence are held. Sequences that a stop string ends are ended on the
        engine at once.

        Raises:
            SplitServeError: a sequence failed; nothing more may be taken.
        """
        deltas = []
        try:
            for stream in self._streams:
                delta = stream.take()
                if delta is not None:
                    deltas.append(delta)
                    if stream.finished:
                        self._end(stream)
        except SplitServeError:
            self._failed = True
            raise
        return deltas

    def close(self) -> None:
        """End on the engine what still runs; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._client.abort([stream.source.request.handle for stream in self._streams])
        # They know whom to wake, who knows this object: a circle that reference counts would not free.
        self._streams = ()
        if self._failed:
            self._stats.requests_failed += 1
        elif self.finished:
            self._stats.requests_finished += 1
        else:
            self._stats.requests_aborted += 1

    def _end(self, stream: SequenceStream) -> None:
        if stream.stopped_here:
            self._client.abort([stream.source.request.handle])
        self.finished = all(other.finished for other in self._streams)
