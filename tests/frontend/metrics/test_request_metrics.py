"""The times of one request's tokens, told in its own answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import httpx
import pytest

from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.metrics.request_metrics import RequestMetrics, RequestTimes
from tests.frontend.http.app_fixtures import ClientFactory
from tests.frontend.http.fake_pool import FakePool
from tests.frontend.http.response.sse_events import events

CHAT = "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}
TEXT = "/v1/completions", {"prompt": "x"}
BOTH = pytest.mark.parametrize(("path", "body"), [CHAT, TEXT], ids=["chat", "text"])
FIGURES = set(RequestMetrics.__struct_fields__)


def test_the_figures_follow_from_four_times() -> None:
    times = RequestTimes(10.0, queue_time_s=0.5, first_token_s=10.75, last_token_s=11.75, num_tokens=5)
    assert times.metrics() == RequestMetrics(
        time_to_first_token_ms=250.0,
        generation_time_ms=1000.0,
        queue_time_ms=500.0,
        mean_itl_ms=250.0,
        tokens_per_second=4.0,
    )


def test_one_token_has_nothing_between_it_and_another() -> None:
    metrics = RequestTimes(1.0, first_token_s=1.5, last_token_s=1.5, num_tokens=1).metrics()
    assert (metrics.mean_itl_ms, metrics.tokens_per_second) == (None, 2.0)


def test_without_a_token_there_are_no_figures() -> None:
    assert RequestTimes(1.0).metrics() == RequestMetrics()


def test_a_wait_measured_longer_than_the_answer_took_gives_no_negative_time() -> None:
    metrics = RequestTimes(1.0, queue_time_s=9.0, first_token_s=1.5, last_token_s=1.5, num_tokens=1).metrics()
    assert (metrics.time_to_first_token_ms, metrics.tokens_per_second) == (0.0, None)


@BOTH
async def test_a_whole_answer_tells_its_metrics(make_client: ClientFactory, path: str, body: dict) -> None:
    answer = (await make_client(enable_per_request_metrics=True).post(path, json=body)).json()
    assert set(answer["metrics"]) == FIGURES
    assert all(value >= 0 for value in answer["metrics"].values())


@BOTH
async def test_the_queue_time_is_the_engines(
    make_client: ClientFactory, pool: FakePool, path: str, body: dict
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "a", [97], queue_time_s=0.25)
        yield OutputDelta(0, "b", [98], finish_reason="stop", queue_time_s=0.25)

    pool.script = script
    answer = (await make_client(enable_per_request_metrics=True).post(path, json=body)).json()
    assert answer["metrics"]["queue_time_ms"] == 250.0


@BOTH
async def test_only_the_usage_chunk_of_a_stream_tells_them(
    make_client: ClientFactory, path: str, body: dict
) -> None:
    asked = body | {"stream": True, "stream_options": {"include_usage": True}}
    client = make_client(enable_per_request_metrics=True)
    *others, last = events((await client.post(path, json=asked)).text)
    assert set(last["metrics"]) == FIGURES
    assert not any("metrics" in chunk for chunk in others)


@BOTH
@pytest.mark.parametrize("fields", [{"n": 2}, {"use_beam_search": True}], ids=str)
async def test_several_completions_and_beams_have_none(
    make_client: ClientFactory, path: str, body: dict, fields: dict
) -> None:
    answer = (await make_client(enable_per_request_metrics=True).post(path, json=body | fields)).json()
    assert answer["metrics"] is None


@BOTH
async def test_without_the_flag_they_are_null(client: httpx.AsyncClient, path: str, body: dict) -> None:
    assert (await client.post(path, json=body)).json()["metrics"] is None
    asked = body | {"stream": True, "stream_options": {"include_usage": True}}
    assert not any("metrics" in chunk for chunk in events((await client.post(path, json=asked)).text))


@BOTH
async def test_tokens_that_are_timed_are_not_joined_by_the_engine(
    make_client: ClientFactory, pool: FakePool, path: str, body: dict
) -> None:
    for flag in (False, True):
        await make_client(enable_per_request_metrics=flag).post(path, json=body)
    assert [seen.request.streams for seen in pool.seen] == [False, True]
