"""The HTTP client: what bytes mean however they are cut, and how many requests are open at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from benchmarks.compare.stream_client import Arrival, StreamError, read_answer, request_bytes, stream

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]


def event(text: str = "", **more: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text}], **more}).encode() + b"\n\n"


def chunked(*pieces: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body


def cut(data: bytes, size: int) -> list[Arrival]:
    """Return data as it would come in pieces, one second apart."""
    return [Arrival(float(i), data[at : at + size]) for i, at in enumerate(range(0, len(data), size))]


EVENTS = [
    event("a"),
    event("b"),
    event("", usage={"completion_tokens": 3, "prompt_tokens": 7}),
    b"data: [DONE]\n\n",
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
@pytest.mark.parametrize(
    "answer", [chunked(*EVENTS), HEAD + b"\r\n" + b"".join(EVENTS)], ids=["chunked", "plain"]
)
def test_an_answer_means_the_same_however_it_is_cut(answer: bytes, size: int) -> None:
    completion = read_answer(0.0, cut(answer, size))
    assert (completion.num_tokens, completion.num_prompt_tokens) == (3, 7)
    assert len(completion.text_times_s) == 2
    assert completion.ended_s == (len(answer) - 1) // size


def test_a_chunk_border_may_fall_inside_an_event() -> None:
    whole = b"".join(EVENTS)
    answer = chunked(whole[:30], whole[30:31], whole[31:])
    assert read_answer(0.0, cut(answer, 10)).num_tokens == 3


def test_an_event_has_the_time_of_its_last_byte() -> None:
    answer = chunked(event("a"), event("b"))
    end_of_a = answer.index(b"\n", answer.index(b"data")) + 1
    arrivals = [Arrival(1.0, answer[: end_of_a - 1]), Arrival(2.0, answer[end_of_a - 1 :])]
    assert read_answer(0.0, arrivals).text_times_s == [2.0, 2.0]
    arrivals = [Arrival(1.0, answer[:end_of_a]), Arrival(2.0, answer[end_of_a:])]
    assert read_answer(0.0, arrivals).text_times_s == [1.0, 2.0]


def test_events_with_text_count_where_the_server_does_not() -> None:
    completion = read_answer(0.0, [Arrival(1.0, chunked(event("a"), event("b"), event("")))])
    assert (completion.num_tokens, completion.num_prompt_tokens) == (2, 0)


def test_refusals_errors_and_silence_are_raised() -> None:
    with pytest.raises(StreamError, match="too long"):
        read_answer(0.0, [Arrival(1.0, b"HTTP/1.1 400 Bad Request\r\n\r\ntoo long")])
    with pytest.raises(StreamError, match="engine died"):
        read_answer(0.0, [Arrival(1.0, chunked(event("a"), b'data: {"error": "engine died"}\n\n'))])
    with pytest.raises(StreamError, match="without an answer"):
        read_answer(0.0, [])


def test_a_stream_without_text_is_an_error() -> None:
    with pytest.raises(StreamError, match="without text"):
        read_answer(0.0, [Arrival(1.0, chunked(event(""), b"data: [DONE]\n\n"))])


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[str]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)  # type: ignore[arg-type]
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def read_request(reader: asyncio.StreamReader) -> dict[str, Any]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split()[0])
    body: dict[str, Any] = json.loads(await reader.readexactly(length))
    return body


async def test_requests_are_sent_in_order_and_so_many_at_a_time() -> None:
    open_now, most = 0, 0
    prompts: list[int] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        prompts.append((await read_request(reader))["prompt"])
        writer.write(chunked(*EVENTS))
        await writer.drain()
        open_now -= 1
        writer.close()
        await writer.wait_closed()

    async with served(answer) as url:
        finished = await stream(url, [{"prompt": i} for i in range(20)], 4)
    assert sorted(prompts) == list(range(20))
    assert prompts[0] < 4
    assert 1 <= most <= 4
    assert [completion.num_tokens for completion in finished] == [3] * 20
    assert all(completion.ended_s > completion.sent_s for completion in finished)


async def test_one_refusal_ends_the_turn() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 404 Not Found\r\n\r\nno such model")
        writer.close()
        await writer.wait_closed()

    async with served(refuse) as url:
        with pytest.raises(StreamError, match="no such model"):
            await stream(url, [{"prompt": "x"}], 1)


async def test_a_server_that_is_gone_is_an_error() -> None:
    async with served(lambda reader, writer: None) as url:
        pass
    with pytest.raises(OSError, match=r"refused|Connect"):
        await stream(url, [{"prompt": "x"}], 1)


def test_a_request_names_its_length_in_bytes_and_asks_to_close() -> None:
    head, _, body = request_bytes("http://127.0.0.1:80", {"prompt": "ä"}).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"Connection: close" in head
    assert json.loads(body) == {"prompt": "ä"}
