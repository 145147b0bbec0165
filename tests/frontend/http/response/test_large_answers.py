"""Large answers: bounded before anything is computed, made while they are read, the same as small ones."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from splitserve.engine_core.checkpoint.config.sampling_defaults import SamplingDefaults
from splitserve.frontend.http.response.json_pieces import JsonPieces
from splitserve.frontend.http.slices import SLICE_VALUES, SliceQueue
from tests.frontend.http.app_fixtures import ClientFactory, ServerFactory
from tests.frontend.http.fake_pool import ByteTokenizer, FakePool
from tests.frontend.http.response.sse_events import events

LONG = [[(7 * i) % 256 for i in range(2 * SLICE_VALUES)], [65] * 600, [66]]


async def post(client: httpx.AsyncClient, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    return await client.post(path, json=body)


@pytest.mark.parametrize(
    ("more", "num_values", "param"),
    [
        ({"echo": True, "logprobs": 3, "max_tokens": 0}, 2 * 100 * (5 + 1), "logprobs"),
        ({"echo": True, "max_tokens": 0, "n": 8}, 8 * 100 * 2, "prompt"),
        ({"return_token_ids": True, "n": 8}, 8 * 100 * 2, "prompt"),
        ({"prompt_logprobs": 9}, 100 * 2 * 11, "prompt_logprobs"),
        ({"logprobs": 4, "max_tokens": 100, "n": 2}, 2 * 100 * 2 * 6, "logprobs"),
        ({"logprobs": 0, "logprob_token_ids": [1, 2, 3, 4], "max_tokens": 100}, 100 * 2 * 6, "logprobs"),
    ],
)
async def test_an_answer_that_would_hold_too_much_is_400_before_an_engine_hears_of_it(
    make_client: ClientFactory, pool: FakePool, more: dict[str, Any], num_values: int, param: str
) -> None:
    prompts = [[65] * 100, [66] * 100]
    refused = await post(make_client(max_answer_values=num_values - 1), prompt=prompts, **more)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, param)
    assert f"would contain {num_values} values" in error["message"]
    assert "--max-answer-values" in error["message"]
    assert not pool.seen
    taken = await post(make_client(max_answer_values=num_values), prompt=prompts, **more)
    assert taken.status_code == 200


async def test_logprobs_of_a_stream_are_not_held_and_not_counted(make_client: ClientFactory) -> None:
    client = make_client(max_answer_values=1024)
    body: dict[str, Any] = {"prompt": [65], "logprobs": 20, "max_tokens": 200, "stream": True}
    assert (await post(client, **body)).status_code == 200
    assert (await post(client, **body | {"stream": False})).status_code == 400


async def test_a_chat_without_max_tokens_gets_what_the_answer_has_room_for(
    make_client: ClientFactory, pool: FakePool
) -> None:
    pool.defaults, pool.max_model_len = SamplingDefaults(), 10**5
    client = make_client(max_answer_values=1024)
    body = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 2, "n": 4}
    assert (await post(client, "/v1/chat/completions", **body)).status_code == 200
    assert pool.seen[0].request.sampling.max_tokens == 1024 // (4 * 4)


FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": LONG, "echo": True, "logprobs": 2, "n": 2, "prompt_logprobs": 1}),
    ("/v1/completions", {"prompt": LONG, "echo": True, "return_token_ids": True}),
    ("/v1/completions", {"prompt": 'ä€😀\x00"\\' * 900, "echo": True, "logprobs": 1}),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "x" * 3000}],
            "prompt_logprobs": 2,
            "return_token_ids": True,
        },
    ),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 20, "n": 16},
    ),
]


def all_at_once(
    self: JsonPieces, items: Iterable[object], num_items: int, values_per_item: int = 1
) -> object:
    return list(items)


TOKENS: list[tuple[str, dict[str, Any]]] = [
    ("/tokenize", {"prompt": "ä€😀" * 900, "return_token_strs": True}),
    ("/detokenize", {"tokens": list("ä€😀".encode()) * 900}),
]


@pytest.mark.parametrize(("path", "body"), FIELDS + TOKENS)
async def test_an_answer_in_pieces_says_the_same_as_one_made_at_once(
    client: httpx.AsyncClient, pool: FakePool, monkeypatch: pytest.MonkeyPatch, path: str, body: dict
) -> None:
    pool.max_model_len, pool.text = 10**5, "Hä? 😀 ja"
    body = body | {"request_id": "one"}
    in_pieces = await post(client, path, **body)
    assert "content-length" not in in_pieces.headers
    with monkeypatch.context() as patch:
        patch.setattr(JsonPieces, "long_list", all_at_once)
        patch.setattr(JsonPieces, "long_text", lambda self, texts: "".join(texts))
        at_once = await post(client, path, **body)
    assert "content-length" in at_once.headers
    same = in_pieces.json() | {"created": 0} == at_once.json() | {"created": 0}
    assert same


def by_choice(chunks: list[dict]) -> list[dict]:
    """The events of one choice after another; in which order choices move is nobody's promise."""
    return sorted(
        (chunk | {"created": 0} for chunk in chunks),
        key=lambda chunk: chunk["choices"][0]["index"] if chunk["choices"] else -1,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("path", "body"), FIELDS)
async def test_a_stream_with_large_events_says_the_same_as_with_each_made_at_once(
    client: httpx.AsyncClient, pool: FakePool, monkeypatch: pytest.MonkeyPatch, path: str, body: dict
) -> None:
    pool.max_model_len, pool.text = 10**5, "Hä? 😀 ja"
    body = body | {"request_id": "one", "stream": True}
    in_pieces = events((await post(client, path, **body)).text)
    with monkeypatch.context() as patch:
        patch.setattr(JsonPieces, "long_list", all_at_once)
        patch.setattr(JsonPieces, "long_text", lambda self, texts: "".join(texts))
        at_once = events((await post(client, path, **body)).text)
    # Compared outside of the assertion, whose difference would be as large.
    same = by_choice(in_pieces) == by_choice(at_once)
    assert same


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", {"prompt": [65] * 100_000}), ("/detokenize", {"tokens": [65] * 100_000})],
)
async def test_long_lists_of_token_ids_are_looked_at_in_several_turns(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str, body: dict
) -> None:
    num_turns, turn = 0, SliceQueue.turn

    async def count(self: SliceQueue) -> None:
        nonlocal num_turns
        num_turns += 1
        await turn(self)

    monkeypatch.setattr(SliceQueue, "turn", count)
    await post(client, path, **body)
    assert num_turns >= 100_000 // 16384


async def test_a_large_answer_is_made_as_it_is_read_and_the_rest_of_the_process_serves_on(
    make_server: ServerFactory, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client reads the beginning, asks for something else meanwhile, and leaves."""
    num_shown = 0
    token_text = ByteTokenizer.token_text

    def count(self: ByteTokenizer, token_id: int) -> object:
        nonlocal num_shown
        num_shown += 1
        return token_text(self, token_id)

    monkeypatch.setattr(ByteTokenizer, "token_text", count)
    pool.max_model_len = 10**5
    url = await make_server(max_answer_values=2**30)
    num_tokens, n, top = 10_000, 16, 20
    body = {"prompt": [65] * num_tokens, "echo": True, "logprobs": top, "n": n, "max_tokens": 1}
    # Some 70 MB of JSON, of which sockets hold a few; ours holds 64 KiB and a piece.
    num_in_all = num_tokens * n * (top + 3)
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.setblocking(False)
        loop, target = asyncio.get_running_loop(), urlsplit(url)
        async with asyncio.timeout(60):
            await loop.sock_connect(reader, (target.hostname, target.port))
            raw = json.dumps(body).encode()
            head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            await loop.sock_sendall(reader, head + b"content-length: %d\r\n\r\n" % len(raw) + raw)
            assert (await loop.sock_recv(reader, 65536)).startswith(b"HTTP/1.1 200 ")
            async with httpx.AsyncClient(base_url=url) as other:
                assert (await other.get("/live")).status_code == 200
                assert 0 < num_shown < num_in_all / 2
                reader.shutdown(socket.SHUT_RDWR)
                reader.close()
                await pool.num_closed.wait()
                assert (await other.get("/live")).status_code == 200
    assert num_shown < num_in_all / 2
