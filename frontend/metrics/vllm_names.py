"""Which metrics have a name in vLLM, too? Published under it by --metrics-compat vllm.

Dashboards, KEDA triggers and the Gateway API inference extension that were made for vLLM read those. A metric
is left out if we do not measure the same.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from splitserve.engine_core.ipc.messages import QueueStats, WaitReason
from splitserve.frontend.engines.status import EngineStatus
from splitserve.frontend.metrics.engines import engine_names
from splitserve.frontend.metrics.process import PREFIX

VLLM_PREFIX = "vllm:"
_LABELS = ("model_name", "engine")
# Families, so without the _total of counters.
SAME_NAMES = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prompt_tokens",
    "prompt_tokens_cached",
    "generation_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos",
    "num_preemptions",
    "request_success",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
)
# Names of older releases, which many dashboards and scalers still read.
OLDER_NAMES = {
    "kv_cache_usage_perc": "gpu_cache_usage_perc",
    "prefix_cache_queries": "gpu_prefix_cache_queries",
    "prefix_cache_hits": "gpu_prefix_cache_hits",
    "inter_token_latency_seconds": "time_per_output_token_seconds",
}
# vLLM calls what waits for something other than room "deferred".
_DEFERRED = frozenset(
    reason.name.lower() for reason in (WaitReason.PREFIX, WaitReason.GRAMMAR, WaitReason.ADAPTER)
)


class VllmNames(Collector):
    """A collector's families, and those that vLLM has under its names."""

    def __init__(self, inner: Collector) -> None:
        self._inner = inner

    def collect(self) -> Iterable[Metric]:
        """Yield the families."""
        for metric in self._inner.collect():
            yield metric
            name = metric.name.removeprefix(PREFIX)
            if name in SAME_NAMES:
                yield _renamed(metric, VLLM_PREFIX + name)
            if name in OLDER_NAMES:
                yield _renamed(metric, VLLM_PREFIX + OLDER_NAMES[name])


class VllmEngineFigures(Collector):
    """A collector's families, and what vLLM says of its engine in another form than we do."""

    def __init__(self, inner: Collector, status: Callable[[], list[EngineStatus]]) -> None:
        """Args: status returns what is known of the engines."""
        self._inner = inner
        self._status = status

    def collect(self) -> Iterable[Metric]:
        """Yield the families."""
        yield from self._inner.collect()
        yield from _engine_families(self._status())


def _engine_families(statuses: list[EngineStatus]) -> Iterable[Metric]:
    waiting = _gauge(
        "num_requests_waiting_by_reason", "Waiting sequences: for room, or for something else.", "reason"
    )
    cache = _gauge("cache_config_info", "The KV cache.", "block_size", "num_gpu_blocks", "num_cpu_blocks")
    adapters = _gauge(
        "lora_requests_info",
        "Adapters of requests, and when they were looked up.",
        "max_lora",
        "running_lora_adapters",
        "waiting_lora_adapters",
    )
    for name, status in zip(engine_names(statuses), statuses, strict=True):
        stats, queue = status.stats, status.queue
        if stats is None or queue is None:
            continue
        labels = [status.model.names[0] if status.model else "", name]
        for reason, count in _by_reason(queue).items():
            waiting.add_metric([*labels, reason], count)
        sizes = (stats.block_size, stats.num_blocks, stats.num_host_blocks)
        cache.add_metric([*labels, *map(str, sizes)], 1)
        if queue.max_loras:
            names = (",".join(queue.running_adapters), ",".join(queue.waiting_adapters))
            adapters.add_metric([*labels, str(queue.max_loras), *names], time.time())
    return waiting, cache, adapters


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(VLLM_PREFIX + name, text, labels=(*_LABELS, *labels))


def _by_reason(queue: QueueStats) -> Counter[str]:
    counts = Counter(capacity=0, deferred=0)
    for reason, count in queue.waiting.items():
        counts["deferred" if reason in _DEFERRED else "capacity"] += count
    return counts


def _renamed(metric: Metric, name: str) -> Metric:
    renamed = Metric(name, metric.documentation, metric.type)
    renamed.samples = [
        sample._replace(name=name + sample.name.removeprefix(metric.name)) for sample in metric.samples
    ]
    return renamed
