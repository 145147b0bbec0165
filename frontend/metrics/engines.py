"""Metric families of the engines, from the last Pong of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from splitserve.engine_core.ipc.messages import EngineStats, FinishReason
from splitserve.engine_core.ipc.wire import DraftCounts
from splitserve.engine_core.settings.speculation import METHODS
from splitserve.frontend.engines.status import EngineStatus, PoolStats
from splitserve.frontend.metrics.process import PREFIX

STATES = ("connecting", "loading", "ready", "draining", "recovering", "asleep", "lost", "refused")


class _Series(NamedTuple):
    name: str
    text: str
    value: Callable[[EngineStats], float]


def _kv_cache_usage(stats: EngineStats) -> float:
    return 1 - stats.num_free_blocks / stats.num_blocks if stats.num_blocks else 0.0


_GAUGES = (
    _Series("num_requests_running", "Sequences in the running batch.", lambda s: s.num_running),
    _Series("num_requests_waiting", "Sequences in the waiting queue.", lambda s: s.num_waiting),
    _Series("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", _kv_cache_usage),
    _Series("num_kv_blocks", "KV blocks of the pool.", lambda s: s.num_blocks),
    _Series("num_cached_kv_blocks", "KV blocks that hold a reusable prefix.", lambda s: s.num_cached_blocks),
    _Series("num_host_kv_blocks", "KV blocks of the CPU offload tier.", lambda s: s.num_host_blocks),
    _Series(
        "num_used_host_kv_blocks",
        "KV blocks of the CPU offload tier that hold a reusable prefix.",
        lambda s: s.num_used_host_blocks,
    ),
    _Series("num_frontends", "Frontends with a live lease.", lambda s: s.num_frontends),
    _Series("last_step_age_seconds", "Time since the last step ended.", lambda s: s.last_step_age_s),
)
_COUNTERS = (
    _Series("prompt_tokens", "Prompt tokens processed.", lambda s: s.prompt_tokens),
    _Series("generation_tokens", "Tokens generated.", lambda s: s.generation_tokens),
    _Series(
        "prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        lambda s: s.prefix_cache_queries,
    ),
    _Series("prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda s: s.prefix_cache_hits),
    _Series(
        "prefix_cache_host_hits",
        "Prompt tokens found in the CPU offload tier of the prefix cache.",
        lambda s: s.num_loaded_blocks * s.block_size,
    ),
    _Series("kv_blocks_saved", "KV blocks moved to the CPU offload tier.", lambda s: s.num_saved_blocks),
    _Series(
        "kv_blocks_loaded", "KV blocks moved back from the CPU offload tier.", lambda s: s.num_loaded_blocks
    ),
    _Series(
        "spec_decode_num_drafts", "Rows of steps that tokens were drafted for.", lambda s: s.num_drafted_rows
    ),
    _Series("spec_decode_num_draft_tokens", "Tokens drafted.", lambda s: s.draft_tokens),
    _Series(
        "spec_decode_num_accepted_tokens", "Drafted tokens that counted.", lambda s: s.accepted_draft_tokens
    ),
    _Series("num_preemptions", "Preemptions.", lambda s: s.num_preemptions),
    _Series("engine_steps", "Steps run.", lambda s: s.num_steps),
    _Series("worker_compute_seconds", "Time the worker spent in steps.", lambda s: s.worker_compute_s),
    _Series("worker_wait_seconds", "Time the worker waited for steps.", lambda s: s.worker_wait_s),
    _Series("worker_restarts", "Times workers were lost and started again.", lambda s: s.num_worker_restarts),
    _Series("engine_protocol_errors", "Invalid messages the engine received.", lambda s: s.protocol_errors),
)
_LABELS = ("model_name", "engine")
# A series that is missing until its first event hides that event from rate(), so all start at 0.
_NO_FINISHED = {reason.name.lower(): 0 for reason in FinishReason}


def collect_engines(statuses: list[EngineStatus]) -> Iterable[Metric]:
    """Yield the families of all engines; one that has not replied yet has only a state."""
    names = engine_names(statuses)
    known = [
        ([status.model.names[0] if status.model else "", name], status.stats)
        for name, status in zip(names, statuses, strict=True)
        if status.stats is not None
    ]
    for series in _GAUGES:
        gauge = GaugeMetricFamily(PREFIX + series.name, series.text, labels=_LABELS)
        for labels, stats in known:
            gauge.add_metric(labels, series.value(stats))
        yield gauge
    for series in _COUNTERS:
        counter = CounterMetricFamily(PREFIX + series.name, series.text, labels=_LABELS)
        for labels, stats in known:
            counter.add_metric(labels, series.value(stats))
        yield counter
    finished = CounterMetricFamily(
        PREFIX + "request_success", "Sequences that ended, by reason.", labels=(*_LABELS, "finished_reason")
    )
    for labels, stats in known:
        for reason, count in (_NO_FINISHED | stats.finished).items():
            finished.add_metric([*labels, reason], count)
    yield finished
    yield from _drafts(known)
    yield _states(names, statuses)


def _drafts(known: list[tuple[list[str], EngineStats]]) -> Iterable[Metric]:
    """Yield what each drafter has drafted, by how many tokens behind a row's last one, from 0."""
    names = (*_LABELS, "method", "position")
    drafted = CounterMetricFamily(
        PREFIX + "spec_decode_num_draft_tokens_per_pos", "Tokens drafted, by drafter and place.", labels=names
    )
    counted = CounterMetricFamily(
        PREFIX + "spec_decode_num_accepted_tokens_per_pos",
        "Drafted tokens that counted, by drafter and place.",
        labels=names,
    )
    for labels, stats in known:
        named = {each.method: each for each in stats.drafts}
        for each in (named.get(method, DraftCounts(method, [0], [0])) for method in METHODS):
            for family, counts in ((drafted, each.drafted), (counted, each.counted)):
                for position, count in enumerate(counts):
                    family.add_metric([*labels, each.method, str(position)], count)
    yield drafted
    yield counted


def collect_pool(statuses: list[EngineStatus], stats: PoolStats, frontend_id: str) -> Iterable[Metric]:
    """Yield what this frontend knows and counts about its engine connections."""
    labels = ["frontend"]
    ready = GaugeMetricFamily(
        PREFIX + "frontend_engines_ready", "Engines that are ready for this frontend.", labels=labels
    )
    ready.add_metric([frontend_id], sum(status.state == "ready" for status in statuses))
    yield ready
    gauge = GaugeMetricFamily(PREFIX + "frontend_open_sequences", "Sequences open on engines.", labels=labels)
    gauge.add_metric([frontend_id], stats.num_open)
    yield gauge
    counters = (
        ("frontend_requests_aborted", "Requests given up before their end.", stats.requests_aborted),
        ("frontend_requests_failed", "Requests that ended in an error.", stats.requests_failed),
        ("frontend_engines_lost", "Times an engine stopped answering.", stats.engines_lost),
        ("frontend_stale_outputs", "Outputs dropped as of an earlier engine life.", stats.stale_outputs),
        ("frontend_protocol_errors", "Invalid messages received from engines.", stats.protocol_errors),
    )
    for name, text, value in counters:
        counter = CounterMetricFamily(PREFIX + name, text, labels=labels)
        counter.add_metric([frontend_id], value)
        yield counter


def engine_names(statuses: list[EngineStatus]) -> list[str]:
    """Name each engine by its id, plus its position in the list if it has no id or shares it.

    Two equal series would invalidate a whole scrape, and addresses must not be shown outside.
    """
    ids = Counter(status.engine_id for status in statuses)
    return [
        status.engine_id if status.engine_id and ids[status.engine_id] == 1 else f"{status.engine_id}#{i}"
        for i, status in enumerate(statuses)
    ]


def _states(names: list[str], statuses: list[EngineStatus]) -> Metric:
    family = GaugeMetricFamily(
        PREFIX + "engine_state",
        "1 for the state the engine is in, 0 for the others.",
        labels=["engine", "state"],
    )
    for name, status in zip(names, statuses, strict=True):
        for state in STATES:
            family.add_metric([name, state], float(status.state == state))
    return family
