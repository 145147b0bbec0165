"""What do the times of many requests mean? Pure functions; the same definitions as vLLM's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from splitserve.client.bench.load.measured import Measured
from splitserve.client.bench.load.run import Run

NAMES = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
    "client_queue_time": ("Client Queue Time", "Client-side Queueing"),
}


class Spread(msgspec.Struct, frozen=True):
    """A latency over all requests, in milliseconds; all 0 if there was nothing to measure."""

    mean_ms: float
    median_ms: float
    std_ms: float
    percentiles_ms: dict[float, float]


class Figures(msgspec.Struct, frozen=True):
    """A run in numbers.

    Attributes:
        num_completed, num_failed: requests.
        duration_s: from the first request to the end of the last.
        num_input_tokens, num_output_tokens: of those that completed.
        goodput_rps: requests per second that kept the limits; None if there are none.
        peak_output_tps: most tokens that came in one second.
        peak_concurrency: most requests that were open in one second.
        spreads: by the names of NAMES.
    """

    num_completed: int
    num_failed: int
    duration_s: float
    num_input_tokens: int
    num_output_tokens: int
    goodput_rps: float | None
    peak_output_tps: float
    peak_concurrency: int
    spreads: dict[str, Spread]

    @property
    def request_rps(self) -> float:
        """Requests that completed per second."""
        return self.num_completed / self.duration_s

    @property
    def output_tps(self) -> float:
        """Output tokens per second."""
        return self.num_output_tokens / self.duration_s

    @property
    def total_tps(self) -> float:
        """Prompt and output tokens per second."""
        return (self.num_input_tokens + self.num_output_tokens) / self.duration_s


def figures_of(run: Run, percentiles: Sequence[float], limits_s: Mapping[str, float]) -> Figures:
    """Return the figures of a run.

    Args:
        run: to count.
        percentiles: of each latency, 0 to 100.
        limits_s: that good requests keep, by "ttft", "tpot" and "e2el".
    """
    done = [each for each in run.requests if not each.error]
    columns = _columns(done)
    tps, concurrency = _peaks(done)
    return Figures(
        num_completed=len(done),
        num_failed=len(run.requests) - len(done),
        duration_s=run.duration_s,
        num_input_tokens=sum(each.num_prompt_tokens for each in done),
        num_output_tokens=sum(num_output_tokens(each) for each in done),
        goodput_rps=_num_good(done, limits_s) / run.duration_s if limits_s else None,
        peak_output_tps=tps,
        peak_concurrency=concurrency,
        spreads={name: spread_of(values, percentiles) for name, values in columns.items()},
    )


def num_output_tokens(seen: Measured) -> int:
    """Return the tokens of an answer: as the server counts, else its events."""
    return seen.num_output_tokens or len(seen.itls_s) + 1


def tpot_s(seen: Measured) -> float:
    """Return the mean time of the tokens after the first, 0 if there is none."""
    num_more = num_output_tokens(seen) - 1
    return (seen.latency_s - seen.ttft_s) / num_more if num_more > 0 else 0.0


def spread_of(values_s: Sequence[float], percentiles: Sequence[float]) -> Spread:
    """Return the spread of times in seconds."""
    values = np.array(values_s or [0.0]) * 1000
    found = np.percentile(values, list(percentiles)).tolist()
    return Spread(
        float(values.mean()),
        float(np.median(values)),
        float(values.std()),
        dict(zip(percentiles, found, strict=True)),
    )


def _columns(done: Sequence[Measured]) -> dict[str, list[float]]:
    """Return the values of each metric, in seconds."""
    return {
        "ttft": [each.ttft_s for each in done],
        "tpot": [tpot_s(each) for each in done if num_output_tokens(each) > 1],
        "itl": [itl_s for each in done for itl_s in each.itls_s],
        "e2el": [each.latency_s for each in done],
        "client_queue_time": [each.queue_s for each in done],
    }


def _num_good(done: Sequence[Measured], limits_s: Mapping[str, float]) -> int:
    return sum(
        all(
            {"ttft": each.ttft_s, "tpot": tpot_s(each), "e2el": each.latency_s}[name] <= limit_s
            for name, limit_s in limits_s.items()
        )
        for each in done
    )


def _peaks(done: Sequence[Measured]) -> tuple[float, int]:
    """Return the most events in one second, and the most requests that were open in one."""
    if not done:
        return 0.0, 0
    begin_s = min(each.start_s for each in done)
    num_seconds = math.ceil(max(each.start_s + each.latency_s for each in done) - begin_s) + 1
    tokens = np.zeros(num_seconds)
    open_requests = np.zeros(num_seconds, dtype=int)
    for each in done:
        since_s = each.start_s - begin_s
        token_times = since_s + each.ttft_s + np.cumsum([0.0, *each.itls_s])
        np.add.at(tokens, token_times.astype(int).clip(0, num_seconds - 1), 1)
        open_requests[int(since_s) : int(since_s + each.latency_s) + 1] += 1
    return float(tokens.max()), int(open_requests.max())
