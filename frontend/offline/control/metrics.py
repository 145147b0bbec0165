"""LLM.get_metrics: the engine's figures as values, under the names of /metrics."""

from __future__ import annotations

from dataclasses import dataclass

from splitserve.frontend.engines.status import EngineStatus
from splitserve.frontend.metrics.engines import collect_engines
from splitserve.frontend.metrics.queues import collect_queues


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure; labels tell it from others of its name."""

    name: str
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Counter(Metric):
    """Counts up from the engine's start."""

    value: float


@dataclass(frozen=True, slots=True)
class Gauge(Metric):
    """What is so now."""

    value: float


def metrics_of(statuses: list[EngineStatus]) -> list[Metric]:
    """Return the figures of engines; they have no histograms."""
    families = (*collect_engines(statuses), *collect_queues(statuses))
    return [
        kind(sample.name, dict(sample.labels), sample.value)
        for family in families
        for kind in (Counter if family.type == "counter" else Gauge,)
        for sample in family.samples
    ]
