"""Event streams: the shape of every chunk, usage, keep-alives, errors on the way, and how they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from splitserve.engine_core.errors import EngineRequestError, OverloadedError
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from tests.frontend.http.app_fixtures import ClientFactory
from tests.frontend.http.fake_pool import FakePool, deltas_of, turns
from tests.frontend.http.response.sse_events import events, joined

CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
TEXT = ("/v1/completions", {"prompt": "x"})
BOTH = pytest.mark.parametrize(("path", "body"), [CHAT, TEXT])


async def stream(client: httpx.AsyncClient, path: str, body: dict, **more: Any) -> list[dict]:
    response = await client.post(path, json=body | {"stream": True} | more)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    return events(response.text)


@BOTH
async def test_a_stream_holds_the_text_of_the_whole_answer(
    client: httpx.AsyncClient, path: str, body: dict
) -> None:
    for n in (1, 3):
        chunks = await stream(client, path, body, n=n)
        assert [joined(chunks, i) for i in range(n)] == ["Hi there"] * n


@BOTH
async def test_every_chunk_repeats_the_same_head(client: httpx.AsyncClient, path: str, body: dict) -> None:
    chunks = await stream(client, path, body, request_id="r1", model="alias")
    kind = "chat.completion.chunk" if path == CHAT[0] else "text_completion"
    heads = {(c["id"], c["created"], c["model"], c["object"], c["system_fingerprint"]) for c in chunks}
    assert len(heads) == 1
    head = heads.pop()
    assert (head[0].partition("-")[2], head[2], head[3]) == ("r1", "alias", kind)


async def test_a_chat_stream_begins_with_the_role_of_each_choice(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, *CHAT, n=2)
    assert [chunk["choices"] for chunk in chunks[:2]] == [
        [{"index": i, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}]
        for i in range(2)
    ]
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[2:])


@BOTH
async def test_only_the_last_chunk_of_a_choice_has_a_finish_reason(
    client: httpx.AsyncClient, path: str, body: dict
) -> None:
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in await stream(client, path, body)]
    assert reasons[-1] == "stop"
    assert set(reasons[:-1]) == {None}


@BOTH
async def test_without_stream_options_no_chunk_speaks_of_usage(
    client: httpx.AsyncClient, path: str, body: dict
) -> None:
    assert all("usage" not in chunk for chunk in await stream(client, path, body))


@BOTH
async def test_the_usage_chunk_comes_last_and_has_no_choices(
    client: httpx.AsyncClient, path: str, body: dict
) -> None:
    chunks = await stream(client, path, body, stream_options={"include_usage": True})
    whole = (await client.post(path, json=body)).json()
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]


@BOTH
async def test_continuous_usage_grows_from_chunk_to_chunk(
    client: httpx.AsyncClient, path: str, body: dict
) -> None:
    chunks = await stream(
        client, path, body, stream_options={"include_usage": True, "continuous_usage_stats": True}
    )
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 8


async def test_chat_logprobs_and_token_ids_are_spread_over_the_chunks(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, *CHAT, logprobs=True, top_logprobs=1, return_token_ids=True)
    assert bytes(chunks[0]["prompt_token_ids"]) == b"user: x\nassistant: "
    choices = [chunk["choices"][0] for chunk in chunks[1:]]
    assert [choice["logprobs"]["content"][0]["token"] for choice in choices] == list("Hi there")
    assert [choice["token_ids"] for choice in choices] == [[byte] for byte in b"Hi there"]


async def test_completion_logprobs_keep_their_offsets_over_the_chunks(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, *TEXT, logprobs=0, return_token_ids=True, n=2)
    mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == 1]
    assert [choice["logprobs"]["text_offset"] for choice in mine] == [[i] for i in range(8)]
    assert mine[0]["prompt_token_ids"] == [256, 120]
    assert all("prompt_token_ids" not in choice for choice in mine[1:])


async def test_echo_comes_with_the_first_chunk(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, *TEXT, echo=True, logprobs=0)
    assert joined(chunks) == "xHi there"
    assert chunks[0]["choices"][0]["logprobs"]["tokens"] == ["<|256|>", "x", "H"]
    assert joined(await stream(client, *TEXT, echo=True)) == "xHi there"
    assert joined(await stream(client, *TEXT, echo=True, max_tokens=0)) == "x"


async def test_an_echo_begins_every_choice_of_a_stream_with_the_prompts_logprobs(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        # The prompt's logprobs come with the first choice, which is not always the first to begin.
        for delta in sorted(deltas_of("Hi", request), key=lambda delta: -delta.index):
            yield delta

    pool.script = script
    body = {"prompt": ["ab", "c"], "echo": True, "logprobs": 0, "n": 3}
    whole = (await client.post("/v1/completions", json=body)).json()["choices"]
    assert all(choice["logprobs"]["tokens"][0] == "<|256|>" for choice in whole)
    chunks = [chunk["choices"][0] for chunk in await stream(client, "/v1/completions", body)]
    for choice in whole:
        mine = [chunk for chunk in chunks if chunk["index"] == choice["index"]]
        assert "".join(chunk["text"] for chunk in mine) == choice["text"]
        for column, values in choice["logprobs"].items():
            assert [value for chunk in mine for value in chunk["logprobs"][column]] == values
    assert len(chunks) == 6 * len("Hi")


@BOTH
@pytest.mark.parametrize("more", [{}, {"n": 2}, {"return_token_ids": True}, {"seed": 1}])
async def test_prompt_logprobs_come_with_the_first_chunk_of_the_first_choice(
    client: httpx.AsyncClient, path: str, body: dict, more: dict
) -> None:
    asked = {"prompt_logprobs": 2, **more}
    whole = (await client.post(path, json=body | asked)).json()
    chunks = await stream(client, path, body, **asked)
    is_chat = path == CHAT[0]
    carriers = chunks if is_chat else [choice for chunk in chunks for choice in chunk["choices"]]
    with_scores = [carrier for carrier in carriers if "prompt_logprobs" in carrier]
    assert [carrier["prompt_logprobs"] for carrier in with_scores] == [
        (whole if is_chat else whole["choices"][0])["prompt_logprobs"]
    ]
    n = more.get("n", 1)
    # In chat the chunks that name the roles go before it.
    assert carriers.index(with_scores[0]) == (n if is_chat else 0)
    assert [joined(chunks, i) for i in range(n)] == ["Hi there"] * n


@BOTH
async def test_prompt_logprobs_come_even_if_the_first_token_shows_no_text(
    client: httpx.AsyncClient, pool: FakePool, path: str, body: dict
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        first, *rest = deltas_of("ab", request)
        first.text, first.token_ids = "", []
        yield first
        for delta in rest:
            yield delta

    pool.script = script
    for more in ({}, {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}):
        chunks = await stream(client, path, body, prompt_logprobs=0, **more)
        assert sum('"decoded_token"' in json.dumps(chunk) for chunk in chunks) == 1
        assert joined(chunks) == "b"


async def test_every_prompt_of_a_list_has_its_own_logprobs_in_a_stream(client: httpx.AsyncClient) -> None:
    chunks = await stream(client, "/v1/completions", {"prompt": ["ab", "c"]}, n=2, prompt_logprobs=0)
    choices = [choice for chunk in chunks for choice in chunk["choices"] if "prompt_logprobs" in choice]
    assert {choice["index"]: len(choice["prompt_logprobs"]) for choice in choices} == {0: 3, 2: 2}


async def test_an_echo_with_logprobs_shows_prompt_logprobs_only_when_asked(client: httpx.AsyncClient) -> None:
    path, body = TEXT
    asked: dict[str, Any] = {"echo": True, "logprobs": 1}
    whole = (await client.post(path, json=body | asked)).json()["choices"][0]
    more: dict[str, Any]
    for more in ({}, {"prompt_logprobs": 3}):
        choices = [c["choices"][0] for c in await stream(client, path, body | asked | more)]
        tokens = [token for choice in choices for token in choice["logprobs"]["tokens"]]
        assert (tokens, tokens[1]) == (whole["logprobs"]["tokens"], "x")
        assert sum("prompt_logprobs" in choice for choice in choices) == len(more)


async def test_deltas_without_text_give_no_chunk_unless_their_tokens_are_shown(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "", [0xC3])
        yield OutputDelta(0, "é", [0xA9])
        yield OutputDelta(0, "", [], finish_reason="length")

    pool.script = script
    assert len(await stream(client, *TEXT)) == 2
    assert len(await stream(client, *TEXT, return_token_ids=True)) == 3


async def test_text_is_escaped_as_json_asks(client: httpx.AsyncClient, pool: FakePool) -> None:
    pool.text = '"\\\n\r\u2028\u0000😀</script>'
    assert joined(await stream(client, *TEXT)) == pool.text
    assert joined(await stream(client, *CHAT)) == pool.text


async def test_list_prompts_run_at_the_same_time(client: httpx.AsyncClient, pool: FakePool) -> None:
    all_here = asyncio.Barrier(3)

    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        async with asyncio.timeout(30):
            await all_here.wait()
        for delta in deltas_of(chr(request.prompt_token_ids[-1]), request):
            yield delta

    pool.script = script
    chunks = await stream(client, TEXT[0], {"prompt": ["a", "b", "c"]})
    assert [joined(chunks, i) for i in range(3)] == ["a", "b", "c"]


@BOTH
async def test_a_refusal_before_the_first_token_keeps_its_own_status(
    client: httpx.AsyncClient, pool: FakePool, path: str, body: dict
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        raise OverloadedError("the waiting queue is full")
        yield

    pool.script = script
    response = await client.post(path, json=body | {"stream": True})
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"] == {
        "message": "the waiting queue is full",
        "type": "rate_limit_error",
        "param": None,
        "code": "overloaded",
    }


@pytest.mark.parametrize("error", [EngineRequestError("row 3 at /srv/secret"), ValueError("/srv/secret")])
@BOTH
async def test_an_error_after_the_first_token_is_one_event_then_done(
    client: httpx.AsyncClient, pool: FakePool, path: str, body: dict, error: Exception
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "a", [97])
        await turns()
        raise error

    pool.script = script
    chunks = await stream(client, path, body)
    assert chunks[-1]["error"]["type"] == "server_error"
    assert "secret" not in chunks[-1]["error"]["message"]
    assert sum("error" in chunk for chunk in chunks) == 1


async def test_one_failing_prompt_ends_the_whole_list_and_closes_the_others(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield OutputDelta(0, "a", [97])
        if request.prompt_token_ids[-1] == ord("b"):
            raise EngineRequestError("no")
        await asyncio.Event().wait()

    pool.script = script
    response = await client.post(TEXT[0], json={"prompt": ["a", "b", "c"], "stream": True})
    # Nothing was written yet, so the refusal has a status of its own.
    assert (response.status_code, response.json()["error"]["code"]) == (500, "request_failed")
    assert len(pool.closed) == 3


async def test_an_idle_stream_gets_comments_before_and_between_tokens(
    make_client: ClientFactory, pool: FakePool
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        # A busy machine may begin to count the silence a while after it begins.
        await asyncio.sleep(0.25)
        yield OutputDelta(0, "a", [97])
        await asyncio.sleep(0.25)
        yield OutputDelta(0, "b", [98], finish_reason="stop")

    pool.script = script
    response = await make_client(sse_keep_alive_s=0.01).post(TEXT[0], json=TEXT[1] | {"stream": True})
    before, _, after = response.text.partition('"text":"a"')
    assert ": keep-alive\n\n" in before
    assert ": keep-alive\n\n" in after
    assert joined(events(response.text)) == "ab"
    quiet = await make_client(sse_keep_alive_s=0).post(TEXT[0], json=TEXT[1] | {"stream": True})
    assert "keep-alive" not in quiet.text


async def test_an_error_after_a_keep_alive_is_an_event(make_client: ClientFactory, pool: FakePool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        await asyncio.sleep(0.25)
        raise OverloadedError("full")
        yield

    pool.script = script
    response = await make_client(sse_keep_alive_s=0.01).post(TEXT[0], json=TEXT[1] | {"stream": True})
    assert response.status_code == 200
    assert events(response.text)[0]["error"]["code"] == "overloaded"
