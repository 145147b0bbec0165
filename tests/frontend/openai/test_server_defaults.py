"""What flags give to every request: usage in streams, tokens as ids, more logprobs."""

from __future__ import annotations

import httpx
import pytest

from tests.frontend.http.app_fixtures import ClientFactory
from tests.frontend.http.fake_pool import FakePool
from tests.frontend.http.response.sse_events import events

CHAT = "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}
TEXT = "/v1/completions", {"prompt": "x"}
BOTH = pytest.mark.parametrize(("path", "body"), [CHAT, TEXT], ids=["chat", "text"])


@BOTH
@pytest.mark.parametrize(
    "options", [{}, {"stream_options": {"include_usage": False}}, {"stream_options": None}], ids=str
)
async def test_usage_may_be_forced_on_every_stream(
    make_client: ClientFactory, path: str, body: dict, options: dict
) -> None:
    client = make_client(enable_force_include_usage=True)
    response = await client.post(path, json=body | options | {"stream": True})
    *others, last = events(response.text)
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 8)
    assert {chunk["usage"] for chunk in others} == {None}


@BOTH
async def test_forced_usage_changes_nothing_without_a_stream(
    make_client: ClientFactory, path: str, body: dict
) -> None:
    response = await make_client(enable_force_include_usage=True).post(path, json=body)
    assert response.json()["usage"]["completion_tokens"] == 8


@BOTH
async def test_continuous_usage_stays_the_clients_choice(
    make_client: ClientFactory, path: str, body: dict
) -> None:
    client = make_client(enable_force_include_usage=True)
    asked = {"stream": True, "stream_options": {"continuous_usage_stats": True}}
    chunks = events((await client.post(path, json=body | asked)).text)
    assert all(chunk["usage"] for chunk in chunks)


async def chat_tokens(client: httpx.AsyncClient, **fields: object) -> list[tuple[str, list[int]]]:
    """Text and bytes of each token, and of its alternatives, of a chat answer with logprobs."""
    path, body = CHAT
    asked = body | {"logprobs": True, "top_logprobs": 1} | fields
    choice = (await client.post(path, json=asked)).json()["choices"][0]
    entries = choice["logprobs"]["content"]
    return [(each["token"], each["bytes"]) for entry in entries for each in (entry, *entry["top_logprobs"])]


async def test_chat_logprobs_name_tokens_by_id_when_asked(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.text = "H"
    assert await chat_tokens(client) == [("H", [72]), ("H", [72])]
    ids = await chat_tokens(client, return_tokens_as_token_ids=True)
    assert ids == [("token_id:72", [72]), ("token_id:72", [72])]


async def test_completion_logprobs_name_tokens_by_id_when_asked(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    pool.text = "é"
    path, body = TEXT
    asked = body | {"logprobs": 2, "return_tokens_as_token_ids": True}
    logprobs = (await client.post(path, json=asked)).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["token_id:195", "token_id:169"]
    assert [list(top) for top in logprobs["top_logprobs"]] == [
        ["token_id:195", "token_id:196"],
        ["token_id:169", "token_id:170"],
    ]
    assert logprobs["text_offset"] == [0, 1]


@BOTH
async def test_streamed_logprobs_name_tokens_by_id_when_asked(
    client: httpx.AsyncClient, pool: FakePool, path: str, body: dict
) -> None:
    pool.text = "H"
    asked = {"stream": True, "logprobs": True if "messages" in body else 0}
    response = await client.post(path, json=body | asked | {"return_tokens_as_token_ids": True})
    logprobs = events(response.text)[-1]["choices"][0]["logprobs"]
    tokens = (
        [entry["token"] for entry in logprobs["content"]] if "content" in logprobs else logprobs["tokens"]
    )
    assert tokens == ["token_id:72"]


async def test_the_flag_names_tokens_by_id_unless_a_request_says_no(
    make_client: ClientFactory, pool: FakePool
) -> None:
    pool.text = "H"
    client = make_client(return_tokens_as_token_ids=True)
    assert (await chat_tokens(client))[0] == ("token_id:72", [72])
    assert (await chat_tokens(client, return_tokens_as_token_ids=False))[0] == ("H", [72])


LOGPROBS = [
    (*TEXT, "logprobs", {}),
    (*TEXT, "prompt_logprobs", {}),
    (*CHAT, "top_logprobs", {"logprobs": True}),
    (*CHAT, "prompt_logprobs", {}),
]


@pytest.mark.parametrize(("path", "body", "field", "others"), LOGPROBS)
@pytest.mark.parametrize("most", [0, 5, 160])
async def test_the_bound_of_logprobs_is_the_operators(
    make_client: ClientFactory, path: str, body: dict, field: str, others: dict, most: int
) -> None:
    client = make_client(max_logprobs=most)
    allowed = await client.post(path, json=body | others | {field: most})
    assert allowed.status_code == 200, allowed.text
    refused = await client.post(path, json=body | others | {field: most + 1})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == (field, "invalid_value")
    assert f"from 0 to {most}" in error["message"]
