"""What a run is told: workload, engine, costs and goals, each given as key=value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import msgspec

from benchmarks.simulation.cost_model import CostModel
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.errors import ConfigError

ARRIVALS = ("poisson", "bursts", "closed")
# Roomier than the engine's defaults, as the default workload is one for a model of some size.
ENGINE_DEFAULTS = {"max_model_len": 8192, "num_blocks": 8192}


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests arrive when; lengths are tokens, times seconds.

    Attributes:
        requests: how many.
        arrivals: "poisson"; "bursts" (Poisson that is on for burst_on_s and off for burst_off_s, with the
            same mean rate); "closed" (each of `clients` sends its next request think_s after an end).
        rate: mean requests per second.
        think_s: mean of an exponential pause.
        prompt_tokens, output_tokens: medians.
        prompt_sigma, output_sigma: lognormal spread; 0 makes all equal, 1 is a long tail.
        max_prompt_tokens, max_output_tokens: lengths beyond are cut.
        long_share: share of requests that have long_prompt_tokens instead.
        prefix_groups: how many long system prompts there are, 0 for none.
        prefix_tokens: their length, part of no prompt_tokens but on top of it.
        prefix_skew: Zipf exponent of their popularity, 0 for equal.
        tenants, tenant_skew: likewise; tenants share no prefixes.
        urgent_share: share of requests with priority 0; all others have 1.
        timeout_s: of every request, 0 for none.
        trace: a recorded trace (docs/scheduler.md has the format); replaces everything but timeout_s.
        seed: of all chance.
    """

    requests: int = 10000
    arrivals: str = "poisson"
    rate: float = 10.0
    burst_on_s: float = 5.0
    burst_off_s: float = 20.0
    clients: int = 64
    think_s: float = 0.0
    prompt_tokens: int = 256
    prompt_sigma: float = 0.0
    max_prompt_tokens: int = 6000
    output_tokens: int = 128
    output_sigma: float = 0.0
    max_output_tokens: int = 2000
    long_share: float = 0.0
    long_prompt_tokens: int = 4000
    prefix_groups: int = 0
    prefix_tokens: int = 1024
    prefix_skew: float = 0.0
    tenants: int = 1
    tenant_skew: float = 0.0
    urgent_share: float = 0.0
    timeout_s: float = 0.0
    trace: str = ""
    seed: int = 0

    def validate(self) -> None:
        """Raise ConfigError naming the first field out of range."""
        if self.arrivals not in ARRIVALS:
            raise ConfigError(f"arrivals must be one of {', '.join(ARRIVALS)}, got {self.arrivals!r}")
        for name in ("requests", "clients", "prompt_tokens", "output_tokens", "tenants", "prefix_tokens"):
            _within(name, getattr(self, name), 1, 10**8)
        for name in ("max_prompt_tokens", "max_output_tokens", "long_prompt_tokens"):
            _within(name, getattr(self, name), 1, 10**6)
        _within("rate", self.rate, 1e-6, 1e9)
        _within("burst_on_s", self.burst_on_s, 1e-3, 1e6)
        _within("burst_off_s", self.burst_off_s, 0, 1e6)
        _within("prefix_groups", self.prefix_groups, 0, 10**6)
        for name in ("think_s", "timeout_s"):
            _within(name, getattr(self, name), 0, 7 * 86400)
        for name in ("prompt_sigma", "output_sigma", "prefix_skew", "tenant_skew"):
            _within(name, getattr(self, name), 0, 10)
        for name in ("long_share", "urgent_share"):
            _within(name, getattr(self, name), 0, 1)


class Goals(msgspec.Struct, frozen=True, kw_only=True):
    """When a request counts as served well, and how the run is watched.

    Attributes:
        ttft_ms: its first token came within this time of its arrival.
        itl_ms: and its later tokens within this time of the one before,
        late_share: all but this share of them.
        depth: steps in flight, 1 or 2.
        sample_s: interval of queue lengths and fairness.
    """

    ttft_ms: float = 1000.0
    itl_ms: float = 100.0
    late_share: float = 0.05
    depth: int = 2
    sample_s: float = 1.0

    def validate(self) -> None:
        """Raise ConfigError naming the first field out of range."""
        _within("ttft_ms", self.ttft_ms, 0, 1e9)
        _within("itl_ms", self.itl_ms, 0, 1e9)
        _within("late_share", self.late_share, 0, 1)
        _within("depth", self.depth, 1, 2)
        _within("sample_s", self.sample_s, 1e-6, 1e6)


class Settings(NamedTuple):
    """All of a run; with the same settings it comes out the same, bit by bit."""

    workload: Workload
    engine: SchedulerConfig
    cost: CostModel
    goals: Goals


Group = TypeVar("Group", Workload, SchedulerConfig, CostModel, Goals)
_GROUPS = (Workload, SchedulerConfig, CostModel, Goals)
# The engine is told what a move takes, as by a worker that has measured it: the cost model says so.
MEASURED = "move_block_ns"
KEYS = frozenset(name for group in _GROUPS for name in group.__struct_fields__) - {MEASURED}


def make_settings(values: Mapping[str, str]) -> Settings:
    """Build settings from text.

    Raises:
        ConfigError: a key is unknown or a value is of the wrong type or out of range; names it.
    """
    for key in values:
        if key not in KEYS:
            raise ConfigError(f"there is no setting {key!r}; --help lists them")
    cost = _convert(values, CostModel)
    engine = {**ENGINE_DEFAULTS, **values, MEASURED: round(1000 * cost.move_block_us)}
    settings = Settings(
        _convert(values, Workload),
        _convert({key: str(value) for key, value in engine.items()}, SchedulerConfig),
        cost,
        _convert(values, Goals),
    )
    settings.workload.validate()
    settings.cost.validate()
    settings.goals.validate()
    return settings


def describe_settings() -> str:
    """Return all keys with their defaults, one line per group."""
    lines = []
    for group in make_settings({}):
        pairs = [f"{name}={getattr(group, name)}" for name in group.__struct_fields__ if name in KEYS]
        lines.append(f"{type(group).__name__}: {' '.join(pairs)}")
    return "\n\n".join(lines)


def _convert(values: Mapping[str, str], group: type[Group]) -> Group:
    own = {name: values[name] for name in group.__struct_fields__ if name in values}
    try:
        # Tables, such as tenant_weights, are JSON objects.
        read = {name: msgspec.json.decode(text) if text[:1] == "{" else text for name, text in own.items()}
        return msgspec.convert(read, group, strict=False)
    except msgspec.DecodeError as error:
        raise ConfigError(f"settings: {error}") from None


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} must be from {low:g} to {high:g}, got {value}")
