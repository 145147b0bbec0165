"""Made-up traces: when requests arrive and how long they are, drawn from a seed."""

from __future__ import annotations

import numpy as np

from benchmarks.simulation.settings import Workload
from benchmarks.simulation.trace import NO_GROUP, FloatColumn, IntColumn, Trace


def make_trace(workload: Workload) -> Trace:
    """Draw a trace; each property has a stream of chance of its own, so changing one leaves the others."""
    arrivals, prompts, outputs, groups, tenants, priorities = (
        np.random.default_rng([workload.seed, stream]) for stream in range(6)
    )
    count = workload.requests
    group, shared = _prefixes(workload, groups)
    own = _lengths(prompts, count, workload.prompt_tokens, workload.prompt_sigma, workload.max_prompt_tokens)
    own[prompts.random(count) < workload.long_share] = workload.long_prompt_tokens
    return Trace(
        arrival_s=_arrivals(workload, arrivals),
        prompt_tokens=own + shared,
        output_tokens=_lengths(
            outputs, count, workload.output_tokens, workload.output_sigma, workload.max_output_tokens
        ),
        prefix_group=group,
        prefix_tokens=shared,
        tenant=_zipf(tenants, count, workload.tenants, workload.tenant_skew),
        priority=(priorities.random(count) >= workload.urgent_share).astype(np.int64),
    )


def _arrivals(workload: Workload, rng: np.random.Generator) -> FloatColumn:
    if workload.arrivals == "closed":
        return np.zeros(workload.requests)
    times = np.cumsum(rng.exponential(1 / workload.rate, workload.requests))
    if workload.arrivals == "poisson":
        return times
    # The process runs while it is on only, and faster by as much as it rests.
    period = workload.burst_on_s + workload.burst_off_s
    on_time = times * workload.burst_on_s / period
    num_periods = np.floor(on_time / workload.burst_on_s)
    arrival_s: FloatColumn = on_time + num_periods * workload.burst_off_s
    return arrival_s


def _lengths(rng: np.random.Generator, count: int, median: int, sigma: float, longest: int) -> IntColumn:
    spread = np.exp(sigma * rng.standard_normal(count))
    lengths: IntColumn = np.clip(np.rint(median * spread), 1, longest).astype(np.int64)
    return lengths


def _prefixes(workload: Workload, rng: np.random.Generator) -> tuple[IntColumn, IntColumn]:
    count = workload.requests
    if workload.prefix_groups == 0:
        return np.full(count, NO_GROUP), np.zeros(count, np.int64)
    group = _zipf(rng, count, workload.prefix_groups, workload.prefix_skew)
    return group, np.full(count, workload.prefix_tokens)


def _zipf(rng: np.random.Generator, count: int, num_choices: int, exponent: float) -> IntColumn:
    weights = 1 / np.arange(1, num_choices + 1) ** exponent
    chosen: IntColumn = rng.choice(num_choices, count, p=weights / weights.sum())
    return chosen
