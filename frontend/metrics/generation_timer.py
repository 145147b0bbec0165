"""Observes the times and token counts of one sequence as its deltas pass."""

from __future__ import annotations

import time
from collections.abc import Callable

from splitserve.frontend.engines.generation import OutputDelta
from splitserve.frontend.metrics.process import ModelMetrics
from splitserve.frontend.metrics.request_metrics import RequestTimes


class GenerationTimer:
    """Feeds one model's histograms from the deltas of one sequence."""

    __slots__ = ("_arrived", "_clock", "_count", "_first", "_last", "_metrics", "_queue_time")

    def __init__(self, metrics: ModelMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._arrived = self._first = self._last = clock()
        self._queue_time = 0.0
        self._count = 0

    @property
    def last_token_s(self) -> float | None:
        """Monotonic time of the last token in seconds, None before the first."""
        return self._last if self._count else None

    @property
    def num_tokens(self) -> int:
        """Tokens so far."""
        return self._count

    def times(self) -> RequestTimes:
        """Return the times of the tokens so far."""
        return RequestTimes(self._arrived, self._queue_time, self._first, self._last, self._count)

    def on_relayed(self, num_tokens: int, last_token_s: float) -> None:
        """Count tokens whose times native code has already observed."""
        self._count += num_tokens
        self._last = last_token_s

    def on_delta(self, delta: OutputDelta) -> None:
        """Observe one delta; tokens that arrived together share the time since the previous ones."""
        num_tokens = len(delta.token_ids)
        if num_tokens:
            now = self._clock()
            if self._count:
                self._metrics.inter_token_latency.observe((now - self._last) / num_tokens, num_tokens)
            else:
                self._first, self._queue_time = now, delta.queue_time_s
                self._metrics.time_to_first_token.observe(now - self._arrived)
                self._metrics.queue_time.observe(delta.queue_time_s)
            self._count += num_tokens
            self._last = now
        if delta.finish_reason is not None:
            self._finish()

    def _finish(self) -> None:
        metrics, count = self._metrics, self._count
        metrics.e2e_latency.observe(self._clock() - self._arrived)
        metrics.generation_tokens.observe(count)
        if count:
            times = self.times()
            metrics.prefill_time.observe(times.prefill_s)
            metrics.decode_time.observe(times.decode_s)
            metrics.inference_time.observe(times.prefill_s + times.decode_s)
        if count > 1:
            metrics.time_per_output_token.observe((self._last - self._first) / (count - 1))
