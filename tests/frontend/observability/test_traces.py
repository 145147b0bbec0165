"""Traces as a collector gets them: a tree per request, its caller's trace, the model's times, errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
import pytest

from splitserve.engine_core.errors import ConfigError, WorkerError
from splitserve.frontend.config import FrontendConfig
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.observability.settings import ObservabilitySettings
from tests.frontend.http.app_fixtures import ENGINES, ClientFactory, ServerFactory
from tests.frontend.http.fake_pool import FakePool
from tests.frontend.observability.collector import (
    NOT_SAMPLED,
    PARENT_ID,
    SAMPLED,
    TRACE_ID,
    Collector,
    Seen,
    collecting,
    collecting_over_grpc,
)

CHAT = {
    "messages": [{"role": "user", "content": "x"}],
    "max_tokens": 9,
    "temperature": 0.5,
    "top_p": 0.75,
    "seed": 3,
}
SERVER, INTERNAL = 2, 1
ERROR = 2


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    # The SDK's own setting: spans are sent as soon as they are there.
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    with collecting() as collector:
        yield collector


async def post(
    url: str, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> httpx.Response:
    async with httpx.AsyncClient(base_url=url, timeout=30.0) as client:
        return await client.post(path, json=body, headers=headers or {})


async def spans(collector: Collector, num_requests: int = 1) -> list[Seen]:
    return await asyncio.to_thread(collector.wait_for, num_requests)


def named(found: list[Seen], name: str) -> Seen:
    (span,) = [each for each in found if each.name == name]
    return span


async def preempted(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
    yield OutputDelta(0, "a", [97], queue_time_s=1e-6, num_cached_tokens=4)
    await asyncio.sleep(0.01)
    yield OutputDelta(0, "b", [98], finish_reason="stop", num_preemptions=2, num_cached_tokens=4)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_is_one_tree_below_its_callers_span(
    make_server: ServerFactory, pool: FakePool, collector: Collector, stream: bool
) -> None:
    pool.script = preempted
    url = await make_server(otlp_traces_endpoint=collector.url, frontend_id="f7")
    headers = SAMPLED | {"x-request-id": "r1"}
    assert (await post(url, "/v1/chat/completions", CHAT | {"stream": stream}, headers)).status_code == 200
    found = await spans(collector)
    root, model = named(found, "POST /v1/chat/completions"), named(found, "chat org/demo")
    assert (root.trace_id, root.parent_id, root.kind) == (TRACE_ID, PARENT_ID, SERVER)
    assert {span.trace_id for span in found} == {TRACE_ID}
    tree = {span.name: span.parent_id for span in found if span is not root}
    below = dict.fromkeys(("queue", "prefill", "decode"), model.span_id)
    assert tree == {"tokenize": root.span_id, "chat org/demo": root.span_id, **below}
    assert root.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "splitserve.request_id": "r1",
    }
    first_s = model.attributes.pop("gen_ai.response.time_to_first_chunk")
    assert isinstance(first_s, float)
    assert model.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "splitserve",
        "gen_ai.request.model": "org/demo",
        "gen_ai.response.model": "org/demo",
        "gen_ai.response.id": "chatcmpl-r1",
        "gen_ai.request.stream": stream,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.75,
        "gen_ai.request.top_k": model.attributes["gen_ai.request.top_k"],
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.seed": 3,
        "gen_ai.request.choice.count": 1,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 19,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 4,
    }
    decode = named(found, "decode")
    assert decode.attributes["gen_ai.usage.output_tokens"] == 2
    assert decode.attributes["splitserve.num_preemptions"] == 2
    assert decode.resource["service.name"] == "splitserve"
    assert decode.resource["service.instance.id"] == "f7"


async def test_the_parts_of_a_request_follow_each_other(
    make_server: ServerFactory, pool: FakePool, collector: Collector
) -> None:
    pool.script = preempted
    url = await make_server(otlp_traces_endpoint=collector.url)
    await post(url, "/v1/completions", {"prompt": "x"})
    found = await spans(collector)
    root, model = named(found, "POST /v1/completions"), named(found, "text_completion org/demo")
    parts = [named(found, name) for name in ("tokenize", "queue", "prefill", "decode")]
    times = [time for part in parts for time in (part.start_ns, part.end_ns)]
    assert times == sorted(times)
    assert root.start_ns <= times[0] <= times[-1] <= root.end_ns
    assert (model.start_ns, model.end_ns) == (parts[1].start_ns, parts[3].end_ns)
    queue, prefill, decode = parts[1:]
    assert queue.end_ns - queue.start_ns == 1000
    assert prefill.start_ns == queue.end_ns
    assert decode.start_ns == prefill.end_ns
    assert decode.end_ns - decode.start_ns >= 10_000_000
    assert root.parent_id == ""


async def test_every_completion_has_its_own_parts(make_server: ServerFactory, collector: Collector) -> None:
    url = await make_server(otlp_traces_endpoint=collector.url)
    await post(url, "/v1/completions", {"prompt": ["x", "y"], "n": 10})
    found = await spans(collector)
    choices = [span.attributes["splitserve.choice"] for span in found if span.name == "decode"]
    # The others are in the figures only.
    assert sorted(choices, key=str) == sorted(range(16), key=str)
    assert named(found, "text_completion org/demo").attributes["gen_ai.request.choice.count"] == 20


async def test_the_caller_decides_what_is_traced_then_chance(
    make_server: ServerFactory, collector: Collector
) -> None:
    all_of_them = await make_server(otlp_traces_endpoint=collector.url)
    none = await make_server(otlp_traces_endpoint=collector.url, trace_sample_ratio=0.0)
    body = {"prompt": "x"}
    for url, headers in ((all_of_them, NOT_SAMPLED), (none, {}), (none, NOT_SAMPLED)):
        await post(url, "/v1/completions", body, headers)
    await post(none, "/v1/completions", body, SAMPLED | {"x-request-id": "by-the-caller"})
    # Neither is a valid context, so it is as if there was none.
    await post(
        all_of_them, "/v1/completions", body, {"traceparent": "00-0-0-01", "x-request-id": "by-chance"}
    )
    await spans(collector, 2)
    ids = {root.attributes["splitserve.request_id"] for root in collector.roots()}
    assert ids == {"by-the-caller", "by-chance"}


async def test_only_requests_with_a_body_are_traced(make_server: ServerFactory, collector: Collector) -> None:
    url = await make_server(otlp_traces_endpoint=collector.url)
    async with httpx.AsyncClient(base_url=url) as client:
        for path in ("/health", "/metrics", "/v1/models"):
            assert (await client.get(path, headers=SAMPLED)).status_code == 200
    await post(url, "/v1/nothing", {}, SAMPLED)
    (root,) = await spans(collector)
    assert (root.name, root.attributes["http.response.status_code"]) == ("POST", 404)
    assert (root.attributes["error.type"], root.status) == ("unknown_route", 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_are_named_and_those_of_ours_marked(
    make_server: ServerFactory, pool: FakePool, collector: Collector, stream: bool
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "a", [97])
        raise WorkerError("secret")

    url = await make_server(otlp_traces_endpoint=collector.url)
    await post(url, "/v1/completions", {"prompt": "x", "temperature": 9}, {"x-request-id": "clients"})
    pool.script = script
    await post(url, "/v1/completions", {"prompt": "x", "stream": stream}, {"x-request-id": "ours"})
    found = await spans(collector, 2)
    by_id = {root.attributes["splitserve.request_id"]: root for root in collector.roots()}
    assert (by_id["clients"].attributes["error.type"], by_id["clients"].status) == ("invalid_value", 0)
    assert (by_id["ours"].attributes["error.type"], by_id["ours"].status) == (WorkerError.code, ERROR)
    model = named(found, "text_completion org/demo")
    assert (model.attributes["error.type"], model.status) == (WorkerError.code, ERROR)
    assert "secret" not in str(found)


async def test_no_text_of_a_request_is_in_its_trace(make_server: ServerFactory, collector: Collector) -> None:
    url = await make_server(otlp_traces_endpoint=collector.url)
    body = CHAT | {
        "messages": [{"role": "user", "content": "private"}],
        "stop": ["private"],
        "user": "private",
    }
    await post(url, "/v1/chat/completions", body, {"authorization": "Bearer private-key"})
    text = str(await spans(collector))
    assert "private" not in text
    assert "Hi there" not in text


async def test_a_collector_that_is_away_is_no_ones_trouble(make_server: ServerFactory) -> None:
    url = await make_server(otlp_traces_endpoint="http://127.0.0.1:9/v1/traces")
    assert (await post(url, "/v1/completions", {"prompt": "x"})).status_code == 200


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"])
async def test_a_collector_is_told_over_grpc_if_opentelemetrys_variable_says_so(
    make_server: ServerFactory, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    # That of traces counts more.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv(variable, "grpc")
    with collecting_over_grpc() as collector:
        url = await make_server(otlp_traces_endpoint=collector.url)
        assert (await post(url, "/v1/completions", {"prompt": "x"}, SAMPLED)).status_code == 200
        assert {span.trace_id for span in await spans(collector)} == {TRACE_ID}


def test_another_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_PROTOCOL must be grpc or http/protobuf"):
        ObservabilitySettings(otlp_traces_endpoint="http://localhost:4318/v1/traces").validate()


@pytest.mark.parametrize("url", ["grpc://localhost:4317", "localhost:4318", "http://", "file:///x"])
def test_an_endpoint_must_be_http(url: str) -> None:
    with pytest.raises(ConfigError, match="--otlp-traces-endpoint must be a URL such as http"):
        FrontendConfig(engines=ENGINES, otlp_traces_endpoint=url).validate()


def test_without_the_extra_the_endpoint_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splitserve.frontend.observability.protocol.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'splitserve\[otel\]'"):
        ObservabilitySettings(otlp_traces_endpoint="http://localhost:4318/v1/traces").validate()


async def test_without_an_endpoint_nothing_is_traced(make_client: ClientFactory, pool: FakePool) -> None:
    response = await make_client().post("/v1/completions", json={"prompt": "x"}, headers=SAMPLED)
    assert response.status_code == 200
