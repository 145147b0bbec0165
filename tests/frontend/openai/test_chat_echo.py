"""`echo` in chat, and whose turn an answer belongs to."""

from __future__ import annotations

import httpx
import pytest

from tests.frontend.http.fake_pool import FakePool
from tests.frontend.http.response.sse_events import events, joined

USER = {"role": "user", "content": "hello"}
BEGUN = {"role": "assistant", "content": "I say: "}
CONTINUED = {"messages": [USER, BEGUN], "add_generation_prompt": False, "continue_final_message": True}


async def answer(client: httpx.AsyncClient, **body: object) -> dict:
    response = await client.post("/v1/chat/completions", json={"messages": [USER]} | body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize(
    ("body", "role", "content"),
    [
        ({}, "assistant", "Hi there"),
        ({"echo": True}, "assistant", "Hi there"),
        ({"echo": True} | CONTINUED, "assistant", "I say: Hi there"),
        (CONTINUED, "assistant", "Hi there"),
        ({"echo": False} | CONTINUED, "assistant", "Hi there"),
        ({"echo": True, "messages": [USER, BEGUN]}, "assistant", "I say: Hi there"),
        ({"echo": True, "add_generation_prompt": False}, "user", "helloHi there"),
        ({"add_generation_prompt": False}, "user", "Hi there"),
    ],
    ids=str,
)
async def test_the_last_message_goes_before_an_answer_of_its_turn(
    client: httpx.AsyncClient, body: dict, role: str, content: str
) -> None:
    message = (await answer(client, **body))["choices"][0]["message"]
    assert (message["role"], message["content"]) == (role, content)


async def test_a_stream_tells_role_and_echo_before_the_first_token(client: httpx.AsyncClient) -> None:
    asked = CONTINUED | {"echo": True, "stream": True, "n": 2}
    chunks = events((await client.post("/v1/chat/completions", json=asked)).text)
    opening = [(chunk["choices"][0]["index"], chunk["choices"][0]["delta"]) for chunk in chunks[:4]]
    assert opening == [
        (0, {"role": "assistant", "content": ""}),
        (1, {"role": "assistant", "content": ""}),
        (0, {"content": "I say: "}),
        (1, {"content": "I say: "}),
    ]
    assert [joined(chunks, index) for index in range(2)] == ["I say: Hi there"] * 2


async def test_a_streams_role_is_that_of_the_last_message_without_a_turn_of_its_own(
    client: httpx.AsyncClient,
) -> None:
    asked = {"messages": [USER], "add_generation_prompt": False, "stream": True}
    chunks = events((await client.post("/v1/chat/completions", json=asked)).text)
    assert chunks[0]["choices"][0]["delta"]["role"] == "user"


async def test_parts_are_echoed_as_text(client: httpx.AsyncClient) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    body = CONTINUED | {"messages": [USER, {"role": "assistant", "content": parts}], "echo": True}
    assert (await answer(client, **body))["choices"][0]["message"]["content"] == "a\nbHi there"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 2}, 2),
        ({"logprobs": True, "top_logprobs": 2, "prompt_logprobs": 1}, 1),
        ({}, None),
    ],
    ids=str,
)
async def test_an_echo_with_logprobs_asks_for_those_of_the_prompt(
    client: httpx.AsyncClient, pool: FakePool, fields: dict, expected: int | None
) -> None:
    body = await answer(client, echo=True, **fields)
    assert pool.seen[-1].request.sampling.prompt_logprobs == expected
    assert (body["prompt_logprobs"] is None) == (expected is None)
