"""A beam search as a request in progress: all its output becomes available at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from splitserve.frontend.engines.generation import OutputDelta
from splitserve.frontend.engines.status import PoolStats
from splitserve.frontend.engines.stream.sequence_stream import ALL_TOKENS, SequenceStream


class SearchGeneration:
    """Completions that a beam search returns all at once; the search runs in its own task."""

    def __init__(
        self,
        search: Coroutine[Any, Any, list[OutputDelta]],
        on_ready: Callable[[], None],
        stats: PoolStats,
    ) -> None:
        """Start the search.

        Args:
            search: the search; returns all deltas.
            on_ready: called when the search has ended.
            stats: the pool's counters, updated at the end.
        """
        self.finished = False
        self.behind = False
        self.only_stream: SequenceStream | None = None
        self._on_ready: Callable[[], None] | None = on_ready
        self._stats = stats
        self._task = asyncio.create_task(search, name="search")
        self._task.add_done_callback(self._on_done)
        stats.requests_started += 1

    def take(self, max_tokens: int = ALL_TOKENS) -> list[OutputDelta]:
        """Return everything once the search has ended, whatever the limit: a search is never streamed."""
        if self.finished or not self._task.done():
            return []
        found = self._task.result()
        self.finished = True
        return found

    def close(self) -> None:
        """Cancel the search, which aborts the step in flight."""
        if self._on_ready is None:
            return
        self._on_ready = None
        # A task that was cancelled at shutdown has no exception to ask for.
        ended = self._task.done() and not self._task.cancelled()
        failed = ended and self._task.exception() is not None
        self._task.cancel()
        self._stats.count_end(finished=self.finished, failed=failed)

    def _on_done(self, task: asyncio.Task[list[OutputDelta]]) -> None:
        if not task.cancelled():
            # Retrieved so that asyncio does not warn about it if nobody calls take() again.
            task.exception()
        if self._on_ready is not None:
            self._on_ready()
