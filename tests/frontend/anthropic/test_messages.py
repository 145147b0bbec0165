"""POST /v1/messages: whole answers and streams, stop reasons, usage, thinking and tools."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.text.answers.detection import with_overrides
from splitserve.frontend.text.answers.formats import AnswerFormats
from tests.frontend.anthropic.recorded import events, message_of
from tests.frontend.http.app_fixtures import ClientFactory
from tests.frontend.http.fake_pool import FakePool, deltas_of, turns

PATH = "/v1/messages"
USER = {"role": "user", "content": "hello"}
PROMPT = "user: hello\nassistant: "
TOOL = {
    "name": "weather",
    "description": "d",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bärn"}}\n</tool_call>'
OTHER_CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
TWO_CALLS = f"<think>\nHm.\n</think>\n\nLet me see.\n{CALL}\n{OTHER_CALL}"


async def post(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post(PATH, json={"max_tokens": 100, "messages": [USER]} | body)


async def message(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await post(client, **body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def stream(client: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    response = await post(client, stream=True, **body)
    assert response.status_code == 200, response.text
    return events(response.text)


def anonymous(found: dict[str, Any]) -> dict[str, Any]:
    """A message without what differs between two of the same text."""
    content = [{key: value for key, value in block.items() if key != "id"} for block in found["content"]]
    return found | {"id": None, "content": content}


@pytest.fixture
def thinks_and_calls(pool: FakePool) -> None:
    pool.formats = with_overrides(AnswerFormats(), "think", "hermes")
    pool.text = TWO_CALLS
    pool.max_model_len = 4096


async def test_a_whole_message(client: httpx.AsyncClient) -> None:
    response = await client.post(
        PATH, json={"max_tokens": 9, "messages": [USER]}, headers={"x-request-id": "r1"}
    )
    assert response.headers["request-id"] == response.headers["x-request-id"] == "r1"
    assert response.json() == {
        "id": "msg_r1",
        "type": "message",
        "role": "assistant",
        "model": "org/demo",
        "content": [{"type": "text", "text": "Hi there", "citations": None}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len(PROMPT),
            "output_tokens": 8,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
        },
    }


async def test_a_stream_has_every_event_in_its_order(client: httpx.AsyncClient) -> None:
    found = await stream(client)
    assert [event["type"] for event in found] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 8,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert found[0]["message"]["id"].startswith("msg_")
    assert found[1] == {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": "", "citations": None},
    }
    assert found[2] == {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": "H"},
    }
    assert anonymous(message_of(found)) == anonymous(await message(client))


async def test_cached_tokens_are_counted_apart(client: httpx.AsyncClient, pool: FakePool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        for delta in deltas_of("ab", request, num_cached=16):
            yield delta

    pool.script = script
    usage = {
        "input_tokens": len(PROMPT) - 16,
        "output_tokens": 2,
        "cache_read_input_tokens": 16,
        "cache_creation_input_tokens": 0,
    }
    assert (await message(client))["usage"] == usage
    found = await stream(client)
    assert found[0]["message"]["usage"] == usage | {"output_tokens": 1}
    assert message_of(found)["usage"] == usage


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [
        ("stop", None, ("end_turn", None)),
        ("stop", 257, ("end_turn", None)),
        ("stop", "END", ("stop_sequence", "END")),
        ("length", None, ("max_tokens", None)),
    ],
)
async def test_why_it_stopped(
    client: httpx.AsyncClient, pool: FakePool, reason: str, stop: str | int | None, expected: tuple
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "a", [97], finish_reason=reason, stop_reason=stop)

    pool.script = script
    for found in (await message(client), message_of(await stream(client))):
        assert (found["stop_reason"], found["stop_sequence"]) == expected


async def test_an_answer_of_nothing_is_an_empty_text(client: httpx.AsyncClient, pool: FakePool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "", [257], finish_reason="stop")

    pool.script = script
    for formats in (AnswerFormats(), with_overrides(AnswerFormats(), "think", "none")):
        pool.formats = formats
        for found in (await message(client), message_of(await stream(client))):
            assert [block["text"] for block in found["content"]] == [""]


async def test_a_request_that_the_engine_gives_up_is_an_error(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "a", [97])
        await turns()
        yield OutputDelta(0, "", [], finish_reason="abort")

    pool.script = script
    response = await post(client)
    assert (response.status_code, response.json()["error"]["type"]) == (503, "overloaded_error")
    *_, last = await stream(client)
    assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error")


@pytest.mark.usefixtures("thinks_and_calls")
async def test_thinking_text_and_calls_are_blocks(client: httpx.AsyncClient) -> None:
    found = await message(client, tools=[TOOL])
    thinking, text, *calls = found["content"]
    assert thinking == {"type": "thinking", "thinking": "Hm.", "signature": ""}
    assert text["text"] == "Let me see."
    assert [(call["type"], call["name"], call["input"]) for call in calls] == [
        ("tool_use", "weather", {"city": "Bärn"}),
        ("tool_use", "now", {}),
    ]
    assert all(re.fullmatch(r"toolu_[0-9a-f]{24}", call["id"]) for call in calls)
    assert found["stop_reason"] == "tool_use"
    assert anonymous(message_of(await stream(client, tools=[TOOL]))) == anonymous(found)


@pytest.mark.usefixtures("thinks_and_calls")
async def test_a_block_of_thinking_ends_with_its_signature(client: httpx.AsyncClient) -> None:
    found = await stream(client, tools=[TOOL])
    kinds = [event["delta"]["type"] if "delta" in event else event["type"] for event in found[:-2]]
    assert list(dict.fromkeys(kinds)) == [
        "message_start",
        "content_block_start",
        "thinking_delta",
        "signature_delta",
        "content_block_stop",
        "text_delta",
        "input_json_delta",
    ]
    assert kinds[kinds.index("signature_delta") + 1] == "content_block_stop"


@pytest.mark.usefixtures("thinks_and_calls")
@pytest.mark.parametrize(
    "thinking", [{"type": "disabled"}, {"type": "adaptive", "display": "omitted"}], ids=str
)
async def test_thinking_may_be_left_out(client: httpx.AsyncClient, thinking: dict) -> None:
    for found in (
        await message(client, thinking=thinking),
        message_of(await stream(client, thinking=thinking)),
    ):
        assert [block["type"] for block in found["content"]] == ["text"]


@pytest.mark.usefixtures("thinks_and_calls")
async def test_one_tool_at_a_time(client: httpx.AsyncClient) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    found = await message(client, tools=[TOOL], tool_choice=choice)
    assert [block.get("name") for block in found["content"]] == [None, None, "weather"]


@pytest.mark.usefixtures("thinks_and_calls")
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}], ids=str)
async def test_a_use_of_a_tool_is_why_it_stopped_even_if_it_was_demanded(
    client: httpx.AsyncClient, choice: dict
) -> None:
    for found in (
        await message(client, tools=[TOOL], tool_choice=choice),
        message_of(await stream(client, tools=[TOOL], tool_choice=choice)),
    ):
        assert found["stop_reason"] == "tool_use"


@pytest.mark.usefixtures("thinks_and_calls")
async def test_input_that_is_cut_off_is_shown_as_text(client: httpx.AsyncClient, pool: FakePool) -> None:
    text = CALL[: CALL.index("Bär")]

    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, text, list(text.encode()), finish_reason="length")

    pool.script = script
    found = await message(client, tools=[TOOL])
    assert found["content"][0]["input"] == {"INVALID_JSON": '{"city": "'}
    assert found["stop_reason"] == "max_tokens"


async def test_an_error_after_the_beginning_is_an_event(client: httpx.AsyncClient, pool: FakePool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "a", [97])
        await turns()
        raise RuntimeError("secret")

    pool.script = script
    response = await client.post(
        PATH,
        json={"max_tokens": 9, "messages": [USER], "stream": True},
        headers={"x-request-id": "r2"},
    )
    found = events(response.text)
    assert [event["type"] for event in found] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "error",
    ]
    assert found[-1] == {
        "type": "error",
        "error": {"type": "api_error", "message": "Internal server error."},
        "request_id": "r2",
    }


async def test_silence_is_broken_by_a_ping(make_client: ClientFactory, pool: FakePool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        # A busy machine may begin to count the silence a while after it begins.
        await asyncio.sleep(0.25)
        yield OutputDelta(0, "a", [97])
        await asyncio.sleep(0.25)
        yield OutputDelta(0, "b", [98], finish_reason="stop")

    pool.script = script
    response = await post(make_client(sse_keep_alive_s=0.01), stream=True)
    before, _, after = response.text.partition('"text":"a"')
    for part in (before, after):
        assert 'event: ping\ndata: {"type":"ping"}\n\n' in part
    assert ": keep-alive" not in response.text
    assert message_of(events(response.text))["content"][0]["text"] == "ab"
