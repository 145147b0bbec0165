"""POST /v1/responses: whole answers and streams, their ends, usage, reasoning, tools, logprobs, failures."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from splitserve.engine_core.errors import EngineRequestError, OverloadedError
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.text.answers.detection import with_overrides
from splitserve.frontend.text.answers.formats import AnswerFormats
from tests.frontend.http.app_fixtures import ClientFactory, ServerFactory
from tests.frontend.http.fake_pool import FakePool, deltas_of, turns
from tests.frontend.responses.recorded import events, response_of

PATH = "/v1/responses"
LOGPROBS = ["message.output_text.logprobs"]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [
    {"type": "function", "name": "weather", "description": "d", "parameters": PARAMETERS},
    {"type": "function", "name": "now"},
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bärn"}}\n</tool_call>'
OTHER_CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
TEXT = f"<think>\nHm.\n</think>\n\nLet me see.\n{CALL}\n{OTHER_CALL}"


async def post(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post(PATH, json={"input": "hello"} | body)


async def whole(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await post(client, **body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def stream(client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    response = await post(client, stream=True, **body)
    assert response.status_code == 200, response.text
    return events(response.text)


def anonymous(found: dict[str, Any]) -> dict[str, Any]:
    """A response without what differs between two of the same text."""
    output = [
        {key: value for key, value in item.items() if key not in ("id", "call_id")}
        for item in found["output"]
    ]
    return found | {"id": None, "created_at": None, "completed_at": None, "output": output}


async def both(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """The answer as a whole, which a stream must add up to."""
    found = await whole(client, **body)
    assert anonymous(response_of(await stream(client, **body))) == anonymous(found)
    return found


def texts(found: dict[str, Any]) -> list[str]:
    return [
        item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        for item in found["output"]
    ]


@pytest.fixture
def thinks_and_calls(pool: FakePool) -> None:
    pool.formats = with_overrides(AnswerFormats(), "think", "hermes")
    pool.text = TEXT
    pool.max_model_len = 4096


async def test_a_response_has_all_its_parts(client: httpx.AsyncClient) -> None:
    found = await both(client)
    (item,) = found["output"]
    assert re.fullmatch(r"resp_\w+", found["id"])
    assert re.fullmatch(r"msg_\w+", item["id"])
    assert (found["object"], found["status"], found["model"]) == ("response", "completed", "org/demo")
    assert found["created_at"] <= found["completed_at"]
    assert item | {"id": None} == {
        "type": "message",
        "id": None,
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Hi there", "annotations": [], "logprobs": []}],
    }
    prompt = len("user: hello\nassistant: ")
    assert found["usage"] == {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 8,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + 8,
    }


async def test_what_was_not_said_is_echoed_as_it_is_understood(client: httpx.AsyncClient) -> None:
    found = await whole(client)
    assert (
        found.items()
        >= {
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "top_p": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "text": {"format": {"type": "text"}, "verbosity": "medium"},
            "truncation": "disabled",
            "store": False,
            "background": False,
            "previous_response_id": None,
            "top_logprobs": 0,
            "service_tier": "default",
        }.items()
    )


async def test_what_was_said_is_echoed(client: httpx.AsyncClient) -> None:
    said = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "top_p": 0.25,
        "max_output_tokens": 20,
        "max_tool_calls": 3,
        "truncation": "auto",
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "tool_choice": "none",
    }
    found = await both(client, **said, service_tier="flex", store=False, background=False, seed=1, top_k=4)
    assert found.items() >= said.items()


async def test_the_id_is_that_of_the_request(make_client: ClientFactory, pool: FakePool) -> None:
    response = await make_client().post(PATH, json={"input": "x"}, headers={"x-request-id": "abc"})
    assert response.json()["id"] == "resp_abc"
    assert (await whole(make_client(), request_id="def"))["id"] == "resp_def"
    assert [seen.request.request_id for seen in pool.seen] == ["resp_abc", "resp_def"]


@pytest.mark.parametrize(
    ("finish_reason", "status", "item_status", "details"),
    [
        ("stop", "completed", "completed", None),
        ("repetition", "completed", "completed", None),
        ("length", "incomplete", "incomplete", {"reason": "max_output_tokens"}),
    ],
)
async def test_how_a_response_ends(
    client: httpx.AsyncClient,
    pool: FakePool,
    finish_reason: str,
    status: str,
    item_status: str,
    details: dict[str, str] | None,
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "Hi", [1])
        yield OutputDelta(0, finish_reason=finish_reason)

    pool.script = script
    found = await both(client)
    assert (found["status"], found["incomplete_details"], texts(found)) == (status, details, ["Hi"])
    assert [item["status"] for item in found["output"]] == [item_status]
    assert (found["completed_at"] is None) == (status != "completed")


async def test_what_the_engine_gives_up_has_failed(client: httpx.AsyncClient, pool: FakePool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "Hi", [1])
        yield OutputDelta(0, finish_reason="abort")

    pool.script = script
    last = (await stream(client))[-1]
    assert last["type"] == "response.failed"
    for found in (await whole(client), last["response"]):
        assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
        assert texts(found) == ["Hi"]


async def test_an_answer_of_nothing_is_an_empty_message(client: httpx.AsyncClient, pool: FakePool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "", [257], finish_reason="stop")

    pool.script = script
    assert texts(await both(client)) == [""]


async def test_reasoning_text_and_calls_are_items(client: httpx.AsyncClient, thinks_and_calls: None) -> None:
    found = await both(client, tools=TOOLS)
    reasoning, message, weather, now = found["output"]
    assert texts(found) == ["Hm.", "Let me see.", '{"city": "Bärn"}', "{}"]
    assert reasoning | {"id": None} == {
        "type": "reasoning",
        "id": None,
        "status": "completed",
        "content": [{"type": "reasoning_text", "text": "Hm."}],
        "summary": [],
        "encrypted_content": None,
    }
    assert message["type"] == "message"
    assert [call["name"] for call in (weather, now)] == ["weather", "now"]
    assert {call["status"] for call in (weather, now)} == {"completed"}
    assert weather["call_id"] != now["call_id"]
    assert all(re.fullmatch(r"call_\w+", call["call_id"]) for call in (weather, now))
    ids = [item["id"] for item in found["output"]]
    assert [each.partition("_")[0] for each in ids] == ["rs", "msg", "fc", "fc"]
    assert found["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}


async def test_one_delta_may_hold_several_items(
    client: httpx.AsyncClient, pool: FakePool, thinks_and_calls: None
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, TEXT, list(TEXT.encode()), finish_reason="stop")

    pool.script = script
    assert texts(await both(client, tools=TOOLS)) == ["Hm.", "Let me see.", '{"city": "Bärn"}', "{}"]


async def test_only_the_first_call_is_shown_without_parallel_calls(
    client: httpx.AsyncClient, thinks_and_calls: None
) -> None:
    found = await both(client, tools=TOOLS, parallel_tool_calls=False)
    assert [item["type"] for item in found["output"]] == ["reasoning", "message", "function_call"]


async def test_a_call_that_is_cut_off_is_incomplete(
    client: httpx.AsyncClient, pool: FakePool, thinks_and_calls: None
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        *cut, last = deltas_of(TEXT.partition("Bä")[0], request)
        for delta in cut:
            yield delta
        yield OutputDelta(0, last.text, last.token_ids, finish_reason="length")

    pool.script = script
    found = await both(client, tools=TOOLS)
    assert [item["status"] for item in found["output"]] == ["completed", "completed", "incomplete"]
    assert found["status"] == "incomplete"


async def test_logprobs_are_there_if_they_are_included(client: httpx.AsyncClient) -> None:
    found = await both(client, include=LOGPROBS, top_logprobs=2)
    logprobs = found["output"][0]["content"][0]["logprobs"]
    assert "".join(entry["token"] for entry in logprobs) == "Hi there"
    assert {len(entry["top_logprobs"]) for entry in logprobs} == {2}
    assert {len(each["top_logprobs"]) for each in found["output"][0]["content"][0]["logprobs"]} == {2}
    assert found["top_logprobs"] == 2


async def test_logprobs_of_tokens_without_text_come_with_the_next(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        for delta in deltas_of("abcd", request):
            if delta.text in "ad":
                delta.text = ""
            yield delta

    pool.script = script
    found = await both(client, include=LOGPROBS)
    content = found["output"][0]["content"][0]
    assert (content["text"], [entry["token"] for entry in content["logprobs"]]) == ("bc", list("abcd"))


async def test_logprobs_of_reasoning_and_calls_are_not_those_of_the_text(
    client: httpx.AsyncClient, thinks_and_calls: None
) -> None:
    found = await both(client, tools=TOOLS, include=LOGPROBS)
    tokens = "".join(entry["token"] for entry in found["output"][1]["content"][0]["logprobs"])
    assert "Let me see." in tokens
    assert "Hm" not in tokens
    assert "weather" not in tokens


async def test_many_logprobs_are_sent_in_pieces_and_add_up(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.text = "x" * 150
    found = await both(client, include=LOGPROBS, top_logprobs=20)
    assert len(found["output"][0]["content"][0]["logprobs"]) == 150


async def test_the_size_of_a_stream_is_bounded_as_that_of_a_whole_answer(make_client: ClientFactory) -> None:
    client = make_client(max_answer_values=1024)
    for streams in (False, True):
        response = await post(
            client, include=LOGPROBS, top_logprobs=20, max_output_tokens=100, stream=streams
        )
        assert response.status_code == 400
        assert "--max-answer-values" in response.json()["error"]["message"]


async def test_an_error_before_the_first_event_has_its_own_status(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        raise OverloadedError("the waiting queue is full")
        yield

    pool.script = script
    for streams in (False, True):
        response = await post(client, stream=streams)
        assert (response.status_code, response.json()["error"]["code"]) == (429, "overloaded")


async def test_a_later_error_is_the_last_event(client: httpx.AsyncClient, pool: FakePool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "Hi", [1])
        await turns()
        raise EngineRequestError("no luck")

    pool.script = script
    *before, last = await stream(client)
    assert before[-1]["type"] == "response.output_text.delta"
    assert last["type"] == "response.failed"
    found = last["response"]
    assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
    assert texts(found) == ["Hi"]
    assert [item["status"] for item in found["output"]] == ["incomplete"]


async def test_an_error_after_a_keep_alive_is_a_whole_stream(
    make_server: ServerFactory, pool: FakePool
) -> None:
    opened = asyncio.Event()

    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        await opened.wait()
        raise OverloadedError("the waiting queue is full")
        yield

    pool.script = script
    url = await make_server(sse_keep_alive_s=0.01)
    async with (
        httpx.AsyncClient(base_url=url) as client,
        client.stream("POST", PATH, json={"input": "x", "stream": True}) as response,
    ):
        chunks = response.aiter_text()
        text = await anext(chunks)
        assert text.startswith(":")
        opened.set()
        text += "".join([chunk async for chunk in chunks])
    found = events(text)
    assert [event["type"] for event in found] == [
        "response.created",
        "response.in_progress",
        "response.failed",
    ]
    assert found[-1]["response"]["error"]["code"] == "rate_limit_exceeded"


async def test_no_stream_ends_with_done(client: httpx.AsyncClient) -> None:
    response = await post(client, stream=True, stream_options={"include_obfuscation": True})
    assert "[DONE]" not in response.text
    assert response.headers["content-type"].startswith("text/event-stream")


async def test_the_request_is_closed_at_its_end(client: httpx.AsyncClient, pool: FakePool) -> None:
    assert (await whole(client))["status"] == "completed"
    await stream(client)
    assert len(pool.closed) == 2
