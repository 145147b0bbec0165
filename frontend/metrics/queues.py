"""Metric families of the engines' queues, waiting and rejected requests, from the last Pong of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from splitserve.engine_core.ipc.messages import QueueStats, WaitReason
from splitserve.frontend.engines.status import EngineStatus
from splitserve.frontend.metrics.engines import engine_names
from splitserve.frontend.metrics.process import PREFIX

_LABELS = ("model_name", "engine")


class _Series(NamedTuple):
    name: str
    text: str
    value: Callable[[QueueStats], float]


class _Family(NamedTuple):
    name: str
    text: str
    label: str
    known: tuple[str, ...]
    values: Callable[[QueueStats], dict[str, int]]

    def all_values(self, queue: QueueStats) -> dict[str, int]:
        """Return the values by label; known labels without a value get 0."""
        return dict.fromkeys(self.known, 0) | self.values(queue)


_GAUGES = (
    _Series(
        "num_waiting_tokens", "Tokens of sequences that have not run yet.", lambda q: q.num_waiting_tokens
    ),
    _Series(
        "queue_time_estimate_seconds",
        "Estimated wait of a new request, in seconds.",
        lambda q: q.queue_time_s,
    ),
    _Series(
        "num_tenants", "Tenants with a share of their own under the fair policy.", lambda q: q.num_tenants
    ),
)
_WAITING = _Family(
    "num_requests_waiting_by_reason",
    "Waiting sequences by what they wait for.",
    "reason",
    tuple(reason.name.lower() for reason in WaitReason if reason is not WaitReason.NONE),
    lambda q: q.waiting,
)
_COUNTERS = (
    _Family(
        "requests_rejected",
        "Sequences refused with 429, by bound.",
        "bound",
        ("max_num_waiting", "max_waiting_tokens"),
        lambda q: q.rejected,
    ),
    _Family(
        "requests_timed_out",
        "Sequences ended by a timeout, by kind.",
        "kind",
        ("timeout", "queue_timeout"),
        lambda q: q.timeouts,
    ),
)


def collect_queues(statuses: list[EngineStatus]) -> Iterable[Metric]:
    """Yield the families of all engines that have replied."""
    known = [
        ([status.model.names[0] if status.model else "", name], status.queue)
        for name, status in zip(engine_names(statuses), statuses, strict=True)
        if status.queue is not None
    ]
    for series in _GAUGES:
        gauge = GaugeMetricFamily(PREFIX + series.name, series.text, labels=_LABELS)
        for labels, queue in known:
            gauge.add_metric(labels, series.value(queue))
        yield gauge
    by_reason = GaugeMetricFamily(PREFIX + _WAITING.name, _WAITING.text, labels=(*_LABELS, _WAITING.label))
    for labels, queue in known:
        for key, count in _WAITING.all_values(queue).items():
            by_reason.add_metric([*labels, key], count)
    yield by_reason
    for family in _COUNTERS:
        counter = CounterMetricFamily(PREFIX + family.name, family.text, labels=(*_LABELS, family.label))
        for labels, queue in known:
            for key, count in family.all_values(queue).items():
                counter.add_metric([*labels, key], count)
        yield counter
