"""--metrics-compat vllm: what dashboards, scalers and gateways made for vLLM read is there, and is right."""

from __future__ import annotations

import httpx
import pytest

from splitserve.engine_core.ipc.messages import EngineStats, QueueStats
from splitserve.frontend.metrics.vllm_names import OLDER_NAMES, SAME_NAMES
from tests.frontend.http.app_fixtures import ClientFactory
from tests.frontend.http.fake_pool import FakePool
from tests.frontend.metrics.test_metrics import ENGINE, Samples, scrape

# As published by vLLM 0.32 and shown by the dashboards in its repository; _bucket, _sum and _count follow.
HISTOGRAMS = [
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "time_per_output_token_seconds",
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
]
COUNTERS = [
    "prompt_tokens",
    "prompt_tokens_cached",
    "generation_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "gpu_prefix_cache_queries",
    "gpu_prefix_cache_hits",
    "num_preemptions",
    "request_success",
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos",
]
GAUGES = [
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "kv_cache_usage_perc",
    "gpu_cache_usage_perc",
    "cache_config_info",
    "lora_requests_info",
]


@pytest.fixture
def client(make_client: ClientFactory) -> httpx.AsyncClient:
    return make_client(metrics_compat="vllm")


def by_name(found: Samples, name: str) -> list[tuple[dict[str, str], float]]:
    return [(dict(labels), value) for (each, labels), value in found.items() if each == "vllm:" + name]


async def test_all_names_are_there_and_nothing_else_of_theirs(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    pool.queue_now = QueueStats(max_loras=2)
    found = {name.removeprefix("vllm:") for name, _ in await scrape(client) if name.startswith("vllm:")}
    parts = {f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum", "count")}
    assert found == parts | {f"{name}_total" for name in COUNTERS} | {*GAUGES}


async def test_a_metric_has_the_values_and_labels_of_ours(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.stats_now = EngineStats(
        num_running=3, num_waiting=4, num_blocks=10, num_free_blocks=4, finished={"stop": 6},
        prompt_tokens=60, generation_tokens=70, num_preemptions=5,
    )  # fmt: skip
    await client.post("/v1/completions", json={"prompt": "x"})
    found = await scrape(client)
    theirs = {key: value for key, value in found.items() if key[0].startswith("vllm:")}
    assert found["vllm:gpu_cache_usage_perc", ENGINE] == found["vllm:kv_cache_usage_perc", ENGINE] == 0.6
    assert sum(value for (name, _), value in theirs.items() if name == "vllm:request_success_total") == 6
    assert sum(value for (name, _), value in theirs.items() if name.endswith("latency_seconds_count")) == 8
    parts = ("", "_total", "_bucket", "_sum", "_count")
    same = {f"splitserve:{name}{part}" for name in SAME_NAMES for part in parts}
    ours = {key: value for key, value in found.items() if key[0] in same}
    assert {name.removesuffix("_total") for name, _ in ours} >= {"splitserve:prompt_tokens"}
    for (name, labels), value in ours.items():
        assert theirs[name.replace("splitserve", "vllm"), labels] == value
    for name, older in OLDER_NAMES.items():
        for part in parts:
            assert [*by_name(found, name + part)] == [*by_name(found, older + part)]


async def test_a_gateway_finds_blocks_and_adapters(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.stats_now = EngineStats(num_blocks=10, block_size=16, num_host_blocks=7)
    pool.queue_now = QueueStats(max_loras=4, running_adapters=["chat", "sql"], waiting_adapters=["sql"])
    found = await scrape(client)
    [(cache, one)] = by_name(found, "cache_config_info")
    assert (cache["block_size"], cache["num_gpu_blocks"], cache["num_cpu_blocks"], one) == (
        "16",
        "10",
        "7",
        1,
    )
    [(adapters, time_s)] = by_name(found, "lora_requests_info")
    assert (adapters["max_lora"], adapters["running_lora_adapters"]) == ("4", "chat,sql")
    assert adapters["waiting_lora_adapters"] == "sql"
    # A gateway that finds several takes the newest.
    assert time_s > 1.7e9


async def test_without_adapters_there_is_no_line_about_them(client: httpx.AsyncClient) -> None:
    assert not by_name(await scrape(client), "lora_requests_info")


async def test_waiting_requests_are_told_apart_as_vllm_does(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    pool.queue_now = QueueStats(waiting={"rows": 1, "blocks": 2, "grammar": 4, "adapter": 8, "prefix": 16})
    found = by_name(await scrape(client), "num_requests_waiting_by_reason")
    assert {labels["reason"]: value for labels, value in found} == {"capacity": 3, "deferred": 28}


async def test_the_names_are_off_by_default(make_client: ClientFactory) -> None:
    assert "vllm:" not in (await make_client().get("/metrics")).text
