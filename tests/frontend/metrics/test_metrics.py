"""/metrics: parsed as Prometheus parses it, and compared with what really happened."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from splitserve.engine_core.ipc.messages import EngineStats, QueueStats
from splitserve.engine_core.ipc.wire import DraftCounts
from splitserve.frontend.engines.connection.displacement import DisplacedBy
from splitserve.frontend.engines.failover.stats import WAIT_BUCKETS_S, FailoverStats
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.engines.status import EngineStatus, PoolStats
from splitserve.frontend.metrics.engines import collect_engines, collect_pool, engine_names
from splitserve.frontend.metrics.failover import collect_failover
from splitserve.frontend.metrics.generation_timer import GenerationTimer
from splitserve.frontend.metrics.histogram import Histogram
from splitserve.frontend.metrics.process import MAX_HTTP_SERIES, HttpMetrics, ModelMetrics
from splitserve.frontend.metrics.request_metrics import RequestTimes
from tests.frontend.http.fake_pool import FakePool

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scrape(client: httpx.AsyncClient) -> Samples:
    """All samples by name and sorted labels; a repeated series would void a real scrape."""
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    found: Samples = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


ENGINE = (("engine", "engine-0"), ("model_name", "org/demo"))
MINE = (("frontend", "frontend-0"), ("model_name", "org/demo"))


async def test_engine_figures_are_those_it_sent(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.stats_now = EngineStats(
        num_running=3, num_waiting=4, num_blocks=10, num_free_blocks=4, num_preemptions=5,
        prompt_tokens=60, generation_tokens=70, prefix_cache_queries=80, prefix_cache_hits=20,
        finished={"stop": 6, "length": 1}, block_size=16, num_host_blocks=100, num_used_host_blocks=30,
        num_saved_blocks=50, num_loaded_blocks=7, draft_tokens=9, accepted_draft_tokens=8,
        drafts=[DraftCounts("ngram", [5, 4], [5, 3])], num_drafted_rows=6,
    )  # fmt: skip
    found = await scrape(client)
    expected = {
        "num_requests_running": 3,
        "num_requests_waiting": 4,
        "kv_cache_usage_perc": 0.6,
        "num_preemptions_total": 5,
        "prompt_tokens_total": 60,
        "generation_tokens_total": 70,
        "prefix_cache_queries_total": 80,
        "prefix_cache_hits_total": 20,
        "num_host_kv_blocks": 100,
        "num_used_host_kv_blocks": 30,
        "kv_blocks_saved_total": 50,
        "kv_blocks_loaded_total": 7,
        "prefix_cache_host_hits_total": 7 * 16,
        "spec_decode_num_drafts_total": 6,
        "spec_decode_num_draft_tokens_total": 9,
        "spec_decode_num_accepted_tokens_total": 8,
    }
    for name, value in expected.items():
        assert found["splitserve:" + name, ENGINE] == value, name
    drafts = {
        (name.split("num_")[1], labels["method"], labels["position"]): value
        for (name, pairs), value in found.items()
        if value and "method" in (labels := dict(pairs)) and "spec_decode" in name
    }
    assert drafts == {
        ("draft_tokens_per_pos_total", "ngram", "0"): 5,
        ("draft_tokens_per_pos_total", "ngram", "1"): 4,
        ("accepted_tokens_per_pos_total", "ngram", "0"): 5,
        ("accepted_tokens_per_pos_total", "ngram", "1"): 3,
    }
    reasons = {
        dict(labels)["finished_reason"]: v for (n, labels), v in found.items() if v and "request_success" in n
    }
    assert reasons == {"stop": 6, "length": 1}
    assert found["splitserve:engine_state", (("engine", "engine-0"), ("state", "ready"))] == 1


async def test_a_scrape_shows_what_the_engine_counts_now(
    client: httpx.AsyncClient, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ping(timeout_s: float) -> list[EngineStatus]:
        pool.stats_now = EngineStats(generation_tokens=71)
        return pool.status()

    pool.stats_now = EngineStats(generation_tokens=70)
    monkeypatch.setattr(pool, "ping", ping)
    assert (await scrape(client))["splitserve:generation_tokens_total", ENGINE] == 71


async def test_a_scrape_shows_the_last_figures_of_an_engine_that_does_not_answer(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    pool.answers = False
    pool.stats_now = EngineStats(generation_tokens=70)
    assert (await scrape(client))["splitserve:generation_tokens_total", ENGINE] == 70


async def test_the_queue_tells_why_and_how_long(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.queue_now = QueueStats(
        num_waiting_tokens=900, queue_time_s=7, waiting={"blocks": 3, "fair_share": 2},
        rejected={"max_num_waiting": 4}, timeouts={"queue_timeout": 5}, num_tenants=6,
    )  # fmt: skip
    found = await scrape(client)
    for name, value in (("num_waiting_tokens", 900), ("queue_time_estimate_seconds", 7), ("num_tenants", 6)):
        assert found["splitserve:" + name, ENGINE] == value
    by_label = {
        (name, key, dict(labels)[key]): value
        for (name, labels), value in found.items()
        for key in ("reason", "bound", "kind")
        if value and key in dict(labels)
    }
    assert by_label == {
        ("splitserve:num_requests_waiting_by_reason", "reason", "blocks"): 3,
        ("splitserve:num_requests_waiting_by_reason", "reason", "fair_share"): 2,
        ("splitserve:requests_rejected_total", "bound", "max_num_waiting"): 4,
        ("splitserve:requests_timed_out_total", "kind", "queue_timeout"): 5,
    }


async def test_generations_are_counted_and_timed(client: httpx.AsyncClient, pool: FakePool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        for index in range(2):
            yield OutputDelta(index, "a", [1], num_cached_tokens=2, queue_time_s=0.5)
            yield OutputDelta(index, "bc", [2, 3], finish_reason="stop", num_cached_tokens=2)

    pool.script = script
    await client.post("/v1/completions", json={"prompt": "abc", "n": 2, "max_tokens": 7})
    found = await scrape(client)
    expected = {
        "time_to_first_token_seconds_count": 2,
        "inter_token_latency_seconds_count": 4,
        "request_time_per_output_token_seconds_count": 2,
        "e2e_request_latency_seconds_count": 2,
        "request_queue_time_seconds_sum": 1.0,
        "request_prompt_tokens_sum": 4,
        "request_generation_tokens_sum": 6,
        "request_params_n_sum": 2,
        "request_params_max_tokens_sum": 7,
        "prompt_tokens_cached_total": 2,
    }
    for name, value in expected.items():
        assert found["splitserve:" + name, MINE] == value, name


async def test_http_requests_are_counted_by_route_never_by_what_clients_wrote(
    client: httpx.AsyncClient,
) -> None:
    for path in ("/v1/models/a", "/v1/models/b", "/nope", "/x" * 100):
        await client.get(path)
    await client.request("BREW", "/live")
    found = await scrape(client)
    counts = {
        (d["handler"], d["method"], d["status"]): value
        for (name, labels), value in found.items()
        if name == "http_requests_total" and value
        for d in (dict(labels),)
    }
    assert counts == {
        ("/v1/models/{model_id:path}", "GET", "404"): 2,
        ("unmatched", "GET", "404"): 2,
        ("/live", "OTHER", "405"): 1,
    }


async def test_every_family_has_a_sample_before_anything_happened(client: httpx.AsyncClient) -> None:
    text = (await client.get("/metrics")).text
    families = list(text_string_to_metric_families(text))
    assert len(families) > 50
    assert [family.name for family in families if not family.samples] == []


async def test_series_of_known_labels_begin_at_zero(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.stats_now, pool.queue_now = EngineStats(), QueueStats()
    found = await scrape(client)
    engine = (("engine", "engine-0"), ("model_name", "org/demo"))
    for name, label, values in (
        ("request_success_total", "finished_reason", ["stop", "length", "abort", "error", "repetition"]),
        ("num_requests_waiting_by_reason", "reason", ["rows", "blocks", "tokens", "fair_share", "prefix"]),
        ("requests_rejected_total", "bound", ["max_num_waiting", "max_waiting_tokens"]),
        ("requests_timed_out_total", "kind", ["timeout", "queue_timeout"]),
    ):
        for value in values:
            assert found["splitserve:" + name, tuple(sorted((*engine, (label, value))))] == 0
    frontend = (("frontend", "frontend-0"), ("model_name", "org/demo"))
    assert found["splitserve:time_to_first_token_seconds_count", frontend] == 0
    for path, method in (("/v1/chat/completions", "POST"), ("/v1/models/{model_id:path}", "GET")):
        labels = (("frontend", "frontend-0"), ("handler", path), ("method", method))
        assert found["http_requests_total", tuple(sorted((*labels, ("status", "200"))))] == 0
        assert found["http_request_duration_seconds_count", labels] == 0


async def test_an_engine_that_never_answered_has_a_state_and_no_figures(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    pool.state = "loading"
    found = await scrape(client)
    assert not [name for name, _ in found if name == "splitserve:num_requests_running"]
    assert found["splitserve:engine_state", (("engine", "engine-0"), ("state", "loading"))] == 1


def test_what_the_pool_counts_by_request_is_not_called_sequences() -> None:
    stats = PoolStats(num_open=16, requests_aborted=2, requests_failed=1)
    found = {s.name: s.value for family in collect_pool([], stats, "f") for s in family.samples}
    assert found["splitserve:frontend_open_sequences"] == 16
    assert found["splitserve:frontend_requests_aborted_total"] == 2
    assert found["splitserve:frontend_requests_failed_total"] == 1


def test_migrations_are_counted_by_reason_and_wait() -> None:
    stats = FailoverStats(resumed_tokens=70, changed_numerics=2, unsafe_requests=1, given_up=3)
    stats.migrations[DisplacedBy.SILENT] = 5
    stats.wait_counts[1], stats.wait_counts[-1], stats.wait_sum_s = 4, 1, 900.5
    found = {
        (s.name.removeprefix("splitserve:frontend_"), s.labels.get("reason", s.labels.get("le", ""))): s.value
        for family in collect_failover(stats, 6, "f")
        for s in family.samples
    }
    assert found["displaced_sequences", ""] == 6
    assert found["migrations_total", "silent"] == 5
    assert found["migrations_total", "handed_over"] == 0
    assert found["resumed_tokens_total", ""] == 70
    assert found["changed_numerics_total", ""] == 2
    assert found["unsafe_requests_total", ""] == 1
    assert found["given_up_sequences_total", ""] == 3
    buckets = [found["failover_wait_seconds_bucket", str(bound)] for bound in (*WAIT_BUCKETS_S[:2], "+Inf")]
    assert buckets == [0, 4, 5]
    assert found["failover_wait_seconds_sum", ""] == 900.5


def test_engines_of_the_same_name_stay_apart() -> None:
    statuses = [
        EngineStatus("ipc:///a", "ready", "engine-0", stats=EngineStats()),
        EngineStatus("ipc:///b", "ready", "engine-0", stats=EngineStats()),
        EngineStatus("ipc:///c", "connecting"),
    ]
    assert engine_names(statuses) == ["engine-0#0", "engine-0#1", "#2"]
    for family in collect_engines(statuses):
        series = [tuple(sorted(sample.labels.items())) for sample in family.samples]
        assert len(series) == len(set(series))


def test_the_map_of_http_series_is_bounded() -> None:
    metrics = HttpMetrics()
    for i in range(2 * MAX_HTTP_SERIES):
        metrics.observe(f"/{i}", "GET", 200, 0.1)
    assert len(metrics._counts) <= MAX_HTTP_SERIES + 1


def test_a_histogram_counts_values_up_to_and_with_their_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value, weight in ((1.0, 1), (1.5, 2), (2.0, 1), (9.0, 3)):
        histogram.observe(value, weight)
    assert (histogram.count, histogram.sum, list(histogram._counts)) == (7, 33.0, [1, 3, 3])


def test_tokens_that_come_together_share_their_time() -> None:
    times = iter([0.0, 1.0, 4.0, 4.0])
    metrics = ModelMetrics()
    timer = GenerationTimer(metrics, clock=lambda: next(times))
    timer.on_delta(OutputDelta(0, "a", [1]))
    timer.on_delta(OutputDelta(0, "bcd", [2, 3, 4], finish_reason="stop"))
    assert (metrics.time_to_first_token.sum, metrics.inter_token_latency.sum) == (1.0, 3.0)
    assert (metrics.inter_token_latency.count, metrics.time_per_output_token.sum) == (3, 1.0)
    assert metrics.e2e_latency.sum == 4.0
    assert (metrics.prefill_time.sum, metrics.decode_time.sum) == (1.0, 3.0)
    assert metrics.inference_time.sum == 4.0


async def test_the_longest_completion_of_a_request_counts(client: httpx.AsyncClient, pool: FakePool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "a", [97], finish_reason="stop")
        yield OutputDelta(1, "abc", [97, 98, 99], finish_reason="length")

    pool.script = script
    await client.post("/v1/completions", json={"prompt": "x", "n": 2})
    found = await scrape(client)
    name = "splitserve:request_max_num_generation_tokens"
    assert (found[name + "_count", MINE], found[name + "_sum", MINE]) == (1, 3)


def test_times_go_on_from_the_last_token_that_native_code_wrote() -> None:
    times = iter([0.0, 1.0, 8.0, 8.0])
    metrics = ModelMetrics()
    timer = GenerationTimer(metrics, clock=lambda: next(times))
    timer.on_delta(OutputDelta(0, "a", [1]))
    timer.on_relayed(2, 5.0)
    assert timer.last_token_s == 5.0
    timer.on_delta(OutputDelta(0, "d", [4], finish_reason="stop"))
    # Those between are native code's to observe.
    assert (metrics.inter_token_latency.count, metrics.inter_token_latency.sum) == (1, 3.0)
    assert metrics.time_per_output_token.sum == 7.0 / 3
    assert metrics.generation_tokens.sum == 4
    assert timer.times() == RequestTimes(0.0, 0.0, 1.0, 8.0, 4)
