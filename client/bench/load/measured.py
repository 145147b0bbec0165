"""What was seen of one request."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Measured:
    """One request that ended; the times are in seconds.

    Attributes:
        start_s: when it was sent (time.perf_counter).
        queue_s: how long it waited in the client, with --max-concurrency.
        ttft_s: from then to the first token.
        itls_s: between events with tokens.
        latency_s: from then to the last token.
        num_prompt_tokens: as the server counts, or the client if it does not tell.
        num_output_tokens: as the server counts, or the events if it does not tell.
        text: of the answer, with its reasoning.
        error: why it failed, "" if it did not.
    """

    start_s: float
    queue_s: float = 0.0
    ttft_s: float = 0.0
    itls_s: list[float] = field(default_factory=list)
    latency_s: float = 0.0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    text: str = ""
    error: str = ""
