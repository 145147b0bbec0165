"""A server's metrics at one moment, and what happened between two. No I/O."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

PREFIX = "splitserve:"


class EngineLoad(NamedTuple):
    """An engine's gauges and counters.

    Attributes:
        state: ready, draining, lost and so on.
        gauges: values by name, without the prefix; counters as well.
    """

    state: str
    values: dict[str, float]

    def get(self, name: str) -> float:
        """Return a value, 0 if the engine does not tell it."""
        return self.values.get(name, 0.0)


class Sample(NamedTuple):
    """What one scrape said.

    Attributes:
        at_s: when (time.monotonic).
        engines: by name.
        frontends: values by name of the frontend, and by the metric's name without its prefix.
    """

    at_s: float
    engines: dict[str, EngineLoad]
    frontends: dict[str, dict[str, float]]


def read_sample(text: str, at_s: float) -> Sample:
    """Return what a scrape says of engines and frontends."""
    states: dict[str, str] = {}
    engines: dict[str, dict[str, float]] = defaultdict(dict)
    frontends: dict[str, dict[str, float]] = defaultdict(dict)
    for family in text_string_to_metric_families(text):
        if not family.name.startswith(PREFIX) or family.type == "histogram":
            continue
        for each in family.samples:
            name = each.name.removeprefix(PREFIX)
            engine, frontend = each.labels.get("engine"), each.labels.get("frontend")
            if name == "engine_state":
                if each.value:
                    states[each.labels["engine"]] = each.labels["state"]
            elif engine is not None:
                # Of several reasons or models the sum.
                engines[engine][name] = engines[engine].get(name, 0.0) + each.value
            elif frontend is not None:
                frontends[frontend][name] = frontends[frontend].get(name, 0.0) + each.value
    names = sorted({*states, *engines})
    loads = {name: EngineLoad(states.get(name, "unknown"), engines[name]) for name in names}
    return Sample(at_s, loads, dict(sorted(frontends.items())))


class Rates(NamedTuple):
    """What an engine did between two samples, per second; `cached` is the share of prompt tokens found."""

    prompt_tps: float
    output_tps: float
    steps_ps: float
    preemptions_ps: float
    cached: float


def rates(before: Sample, now: Sample, engine: str) -> Rates:
    """Return what an engine did; counters of one that was restarted begin at 0."""
    seconds = now.at_s - before.at_s
    old = before.engines.get(engine)

    def grown(name: str) -> float:
        value = now.engines[engine].get(name)
        earlier = old.get(name) if old is not None else value
        return value - earlier if value >= earlier else value

    def per_second(name: str) -> float:
        return grown(name) / seconds if seconds > 0 else 0.0

    asked = grown("prefix_cache_queries_total")
    return Rates(
        per_second("prompt_tokens_total"),
        per_second("generation_tokens_total"),
        per_second("engine_steps_total"),
        per_second("num_preemptions_total"),
        grown("prefix_cache_hits_total") / asked if asked else 0.0,
    )
