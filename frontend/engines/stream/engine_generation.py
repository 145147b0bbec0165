"""One prompt's request in flight: what is new in its n completions, and when is it finished?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from splitserve.engine_core.errors import SplitServeError
from splitserve.frontend.engines.connection.open_sequence import SequenceHost
from splitserve.frontend.engines.generation import OutputDelta
from splitserve.frontend.engines.status import PoolStats
from splitserve.frontend.engines.stream.sequence_stream import ALL_TOKENS, SequenceStream


class Generation(Protocol):
    """A request in flight; belongs to the pool's event loop, and its owner closes it.

    Attributes:
        finished: whether each completion has had its last delta.
        behind: whether the last take() left something, so that another call would return more now.
    """

    finished: bool
    behind: bool

    @property
    def only_stream(self) -> SequenceStream | None:
        """The stream of a sampled request's only completion, None if there are several."""

    def take(self, max_tokens: int = ALL_TOKENS) -> list[OutputDelta]:
        """Return what is new, at most one delta per completion; what is left is joined with later output.

        Args:
            max_tokens: most tokens in all deltas together; the rest waits for the next call.

        At most max_tokens tokens per completion are held.

        Raises:
            SplitServeError: the request failed; nothing more may be taken.
        """

    def close(self) -> None:
        """Abort on the engine what is still running; safe to call twice."""


class EngineGeneration:
    """Completions that an engine samples, one sequence each."""

    __slots__ = ("_closed", "_error", "_host", "_next", "_stats", "_streams", "behind", "finished")

    def __init__(self, host: SequenceHost, streams: Sequence[SequenceStream], stats: PoolStats) -> None:
        """Take ownership of sequences that were just opened.

        Args:
            host: the host of the sequences.
            streams: one per completion.
            stats: the pool's counters, updated at the end.
        """
        self.finished = False
        self.behind = False
        self._host = host
        self._streams = streams
        self._stats = stats
        self._error: SplitServeError | None = None
        self._closed = False
        # The stream to ask first, so that each gets its turn when the limit is too low for all.
        self._next = 0
        stats.requests_started += 1

    def take(self, max_tokens: int = ALL_TOKENS) -> list[OutputDelta]:
        """Return what is new; a sequence that hits a stop string is aborted on the engine at once."""
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

    @property
    def only_stream(self) -> SequenceStream | None:
        """The stream, if there is one completion."""
        return self._streams[0] if len(self._streams) == 1 else None

    def close(self) -> None:
        """Abort on the engine what is still running."""
        if self._closed:
            return
        self._closed = True
        self._host.abort([stream.source for stream in self._streams])
        # They hold `wake`, which refers back to this object: a cycle that reference counting would not free.
        self._streams = ()
        self._stats.count_end(finished=self.finished, failed=self._error is not None)

    def _end(self, stream: SequenceStream) -> None:
        if stream.stopped_here:
            self._host.abort([stream.source])
        self.finished = all(other.finished for other in self._streams)
