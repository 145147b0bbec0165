"""How long did one request take? The timings that its own response reports."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class RequestMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one completion, as vLLM names them; None if there is no token to measure.

    Attributes:
        time_to_first_token_ms: from its first run to its first token.
        generation_time_ms: from its first token to its last.
        queue_time_ms: how long it waited before it first ran.
        mean_itl_ms: mean time between two tokens; None with fewer than two.
        tokens_per_second: rate of all tokens since it first ran.
    """

    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    queue_time_ms: float | None = None
    mean_itl_ms: float | None = None
    tokens_per_second: float | None = None


@dataclass(slots=True)
class RequestTimes:
    """The measurements behind one completion's metrics, in seconds of one monotonic clock.

    Attributes:
        arrived_s: when it was sent to the engine.
        queue_time_s: how long it waited on the engine.
        first_token_s, last_token_s: when they arrived; meaningless while there is none.
        num_tokens: how many have arrived.
    """

    arrived_s: float
    queue_time_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    num_tokens: int = 0

    def add(self, num_tokens: int, queue_time_s: float, now_s: float) -> None:
        """Record tokens that have just arrived."""
        if not num_tokens:
            return
        if not self.num_tokens:
            self.first_token_s, self.queue_time_s = now_s, queue_time_s
        self.last_token_s = now_s
        self.num_tokens += num_tokens

    @property
    def prefill_s(self) -> float:
        """Seconds from its first run to its first token."""
        # The wait was measured by the engine's clock, so a fast response may seem to precede the first run.
        return max(0.0, self.first_token_s - self.arrived_s - self.queue_time_s)

    @property
    def decode_s(self) -> float:
        """Seconds from its first token to its last."""
        return self.last_token_s - self.first_token_s

    def metrics(self) -> RequestMetrics:
        """Return the metrics of the tokens so far."""
        if not self.num_tokens:
            return RequestMetrics()
        prefill_s, generation_s = self.prefill_s, self.decode_s
        took_s = prefill_s + generation_s
        return RequestMetrics(
            time_to_first_token_ms=1e3 * prefill_s,
            generation_time_ms=1e3 * generation_s,
            queue_time_ms=1e3 * self.queue_time_s,
            mean_itl_ms=1e3 * generation_s / (self.num_tokens - 1) if self.num_tokens > 1 else None,
            tokens_per_second=self.num_tokens / took_s if took_s > 0 else None,
        )
