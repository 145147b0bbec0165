"""The figures of one run, as a struct for JSON and as a table."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.simulation.distribution import Summary, summarise
from benchmarks.simulation.measurements import COMPLETE, FAILED, REJECTED, Measurements
from benchmarks.simulation.settings import Goals
from benchmarks.simulation.simulator import Outcome
from benchmarks.simulation.trace import FloatColumn

BoolColumn = npt.NDArray[np.bool_]


class ClassReport(msgspec.Struct, frozen=True):
    """The requests of one priority."""

    priority: int
    requests: int
    goodput_share: float
    ttft_ms: Summary


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One run; rates are per simulated second, shares are 0..1.

    Attributes:
        goodput_share: completed requests that met the goals, of all that were sent; goodput_rps: per second.
        utilisation: share of the time in which the worker ran a step.
        recomputed_share: tokens computed again after a preemption, of all tokens computed.
        hit_share: tokens found in the prefix cache, of all looked up at admissions.
        saved_blocks, loaded_blocks: moved to the CPU offload tier, and back.
        jain_index, max_lag_tokens: see watch.FairShares.
        total_time_ms: from arrival to end, of completed requests.
        digest: of all events.
    """

    requests: int
    completed: int
    rejected: int
    failed: int
    simulated_s: float
    steps: int
    utilisation: float
    requests_per_s: float
    output_tokens_per_s: float
    computed_tokens_per_s: float
    goodput_share: float
    goodput_rps: float
    ttft_ms: Summary
    itl_ms: Summary
    queue_ms: Summary
    total_time_ms: Summary
    preemptions: int
    recomputed_share: float
    hit_share: float
    saved_blocks: int
    loaded_blocks: int
    jain_index: float
    max_lag_tokens: float
    mean_waiting: float
    max_waiting: int
    mean_running: float
    classes: list[ClassReport]
    digest: str


def make_report(outcome: Outcome) -> Report:
    """Sum a run up."""
    seen, stats = outcome.measurements, outcome.stats
    good = met_goals(seen, outcome.settings.goals)
    samples = outcome.series.samples
    elapsed_s = outcome.end_s or 1.0
    return Report(
        requests=len(seen.outcome),
        completed=int((seen.outcome == COMPLETE).sum()),
        rejected=int((seen.outcome == REJECTED).sum()),
        failed=int((seen.outcome == FAILED).sum()),
        simulated_s=outcome.end_s,
        steps=stats.num_steps,
        utilisation=outcome.busy_s / elapsed_s,
        requests_per_s=float((seen.outcome == COMPLETE).sum()) / elapsed_s,
        output_tokens_per_s=float(seen.num_tokens.sum()) / elapsed_s,
        computed_tokens_per_s=outcome.rows.num_computed_tokens / elapsed_s,
        goodput_share=float(good.mean()),
        goodput_rps=float(good.sum()) / elapsed_s,
        ttft_ms=summarise(_known(seen.first_token_s - seen.sent_s), 1000),
        itl_ms=seen.gaps.summary(1000),
        queue_ms=summarise(_known(seen.started_s - seen.sent_s), 1000),
        total_time_ms=summarise((seen.ended_s - seen.sent_s)[seen.outcome == COMPLETE], 1000),
        preemptions=stats.num_preemptions,
        recomputed_share=outcome.rows.num_recomputed_tokens / max(1, outcome.rows.num_computed_tokens),
        hit_share=stats.prefix_cache_hits / max(1, stats.prefix_cache_queries),
        saved_blocks=stats.num_saved_blocks,
        loaded_blocks=stats.num_loaded_blocks,
        jain_index=outcome.shares.mean_jain,
        max_lag_tokens=outcome.shares.max_lag_tokens,
        mean_waiting=float(np.mean([sample.num_waiting for sample in samples])),
        max_waiting=max(sample.num_waiting for sample in samples),
        mean_running=float(np.mean([sample.num_running for sample in samples])),
        classes=_classes(outcome, good),
        digest=outcome.digest,
    )


def met_goals(seen: Measurements, goals: Goals) -> BoolColumn:
    """Return a bool column [num_requests]: completed, first token in time, and few enough later ones late."""
    ttft_s = seen.first_token_s - seen.sent_s
    allowed = goals.late_share * np.maximum(0, seen.num_tokens - 1)
    # NaN, no token, meets no goal.
    in_time: BoolColumn = (ttft_s <= goals.ttft_ms / 1000) & (seen.num_late <= allowed)
    in_time &= seen.outcome == COMPLETE
    return in_time


def table(report: Report) -> str:
    """Return the figures as lines of text."""
    lines = [
        f"requests            {report.requests}: {report.completed} completed,"
        f" {report.rejected} rejected, {report.failed} failed",
        f"simulated time      {report.simulated_s:.1f} s in {report.steps} steps,"
        f" the worker busy for {report.utilisation:.1%}",
        f"throughput          {report.requests_per_s:.2f} requests/s,"
        f" {report.output_tokens_per_s:.0f} output tokens/s,"
        f" {report.computed_tokens_per_s:.0f} computed tokens/s",
        f"goodput             {report.goodput_share:.1%} of requests, {report.goodput_rps:.2f} requests/s",
        f"preemptions         {report.preemptions}; {report.recomputed_share:.2%} of computed tokens"
        " were computed again",
        f"prefix cache        {report.hit_share:.1%} of tokens found; {report.saved_blocks} blocks saved"
        f" to the CPU offload tier, {report.loaded_blocks} loaded",
        f"queue               {report.mean_waiting:.1f} waiting on average, {report.max_waiting} at most;"
        f" {report.mean_running:.1f} running",
        f"tenants             Jain index {report.jain_index:.3f}, lag at most"
        f" {report.max_lag_tokens:.0f} tokens",
        "",
        f"{'ms':<12}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}",
    ]
    rows = [
        ("TTFT", report.ttft_ms),
        ("ITL", report.itl_ms),
        ("queue", report.queue_ms),
        ("total", report.total_time_ms),
    ]
    if len(report.classes) > 1:
        rows += [(f"TTFT prio {part.priority}", part.ttft_ms) for part in report.classes]
    lines += [
        f"{name:<12}{row.mean:>10.1f}{row.p50:>10.1f}{row.p90:>10.1f}{row.p99:>10.1f}{row.max:>10.1f}"
        for name, row in rows
    ]
    return "\n".join([*lines, "", f"events              {report.digest}"])


def _classes(outcome: Outcome, good: BoolColumn) -> list[ClassReport]:
    seen = outcome.measurements
    ttft_s = seen.first_token_s - seen.sent_s
    classes = []
    for priority in np.unique(outcome.trace.priority).tolist():
        members = outcome.trace.priority == priority
        ttft_ms = summarise(_known(ttft_s[members]), 1000)
        classes.append(ClassReport(priority, int(members.sum()), float(good[members].mean()), ttft_ms))
    return classes


def _known(values: FloatColumn) -> FloatColumn:
    known: FloatColumn = values[~np.isnan(values)]
    return known
