"""Times and token counts of one request's sequences, observed as their deltas pass."""

from __future__ import annotations

import time
from collections.abc import Callable

from frontend.generation import OutputDelta
from frontend.metrics import ModelMetrics


class GenerationTimer:
    """Feeds one model's histograms from the deltas of one request (one prompt, n sequences)."""

    __slots__ = ("_arrived", "_clock", "_counts", "_first", "_last", "_metrics")

    def __init__(self, metrics: ModelMetrics, n: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._arrived = clock()
        self._counts = [0] * n
        self._first = [0.0] * n
        self._last = [0.0] * n

    def on_delta(self, delta: OutputDelta) -> None:
        """Observe one delta; tokens that came together share the time since the last ones."""
        index, num_tokens = delta.index, len(delta.token_ids)
        if num_tokens:
            now = self._clock()
            if self._counts[index] == 0:
                self._first[index] = now
                self._metrics.time_to_first_token.observe(now - self._arrived)
                self._metrics.queue_time.observe(delta.queue_time_s)
            else:
                gap = (now - self._last[index]) / num_tokens
                self._metrics.inter_token_latency.observe(gap, num_tokens)
            self._counts[index] += num_tokens
            self._last[index] = now
        if delta.finish_reason is not None:
            self._finish(index)

    def _finish(self, index: int) -> None:
        metrics, count = self._metrics, self._counts[index]
        metrics.e2e_latency.observe(self._clock() - self._arrived)
        metrics.generation_tokens.observe(count)
        if count > 1:
            metrics.time_per_output_token.observe((self._last[index] - self._first[index]) / (count - 1))
