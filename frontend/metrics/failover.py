"""Metric families of requests that went on at another engine, or at the same one after it was lost."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from splitserve.frontend.engines.failover.stats import WAIT_BUCKETS_S, FailoverStats
from splitserve.frontend.metrics.process import PREFIX


def collect_failover(stats: FailoverStats, num_displaced: int, frontend_id: str) -> Iterable[Metric]:
    """Yield what a frontend counts of migrations.

    Args:
        stats: counted since start.
        num_displaced: sequences that wait for an engine now.
        frontend_id: value of the label "frontend".
    """
    labels = ["frontend"]
    waiting = GaugeMetricFamily(
        PREFIX + "frontend_displaced_sequences",
        "Sequences whose engine was lost and that wait for one.",
        labels=labels,
    )
    waiting.add_metric([frontend_id], num_displaced)
    yield waiting
    migrations = CounterMetricFamily(
        PREFIX + "frontend_migrations",
        "Sequences that went on after their engine was lost, by reason.",
        labels=[*labels, "reason"],
    )
    for cause, count in stats.migrations.items():
        migrations.add_metric([frontend_id, cause.value], count)
    yield migrations
    yield _waits(stats, frontend_id)
    counters = (
        ("frontend_resumed_tokens", "Tokens that such sequences had by then.", stats.resumed_tokens),
        (
            "frontend_changed_numerics",
            "Such sequences whose next engine computes with other numerics.",
            stats.changed_numerics,
        ),
        ("frontend_unsafe_requests", "Requests given up as engines died of them.", stats.unsafe_requests),
        ("frontend_given_up_sequences", "Sequences that ended as no engine took them.", stats.given_up),
    )
    for name, text, value in counters:
        counter = CounterMetricFamily(PREFIX + name, text, labels=labels)
        counter.add_metric([frontend_id], value)
        yield counter


def _waits(stats: FailoverStats, frontend_id: str) -> Metric:
    family = HistogramMetricFamily(
        PREFIX + "frontend_failover_wait_seconds",
        "How long such sequences waited for an engine.",
        labels=["frontend"],
    )
    bounds = [*(str(bound) for bound in WAIT_BUCKETS_S), "+Inf"]
    buckets = list(zip(bounds, map(float, accumulate(stats.wait_counts)), strict=True))
    family.add_metric([frontend_id], buckets, stats.wait_sum_s)
    return family
