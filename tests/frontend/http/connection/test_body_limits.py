"""Size, time, type and encoding of bodies, and the bound of open requests."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
from collections.abc import AsyncGenerator
from urllib.parse import urlsplit

import httpx
import pytest

from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from tests.frontend.http.app_fixtures import ClientFactory, ServerFactory
from tests.frontend.http.fake_pool import FakePool

JSON = {"content-type": "application/json"}
BODY = b'{"prompt":"x"}'


def check(response: httpx.Response, status: int, code: str) -> None:
    assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
        "application/json; charset=utf-16",
        "application/json; charset=latin-1",
        "",
        None,
    ],
)
async def test_a_body_that_is_not_json_in_utf8_is_415(
    client: httpx.AsyncClient, content_type: str | None
) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    check(
        await client.post("/v1/completions", content=BODY, headers=headers), 415, "unsupported_content_type"
    )


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
    ],
)
async def test_every_spelling_of_json_in_utf8_is_taken(client: httpx.AsyncClient, content_type: str) -> None:
    response = await client.post("/v1/completions", content=BODY, headers={"content-type": content_type})
    assert response.status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, identity", "x"])
async def test_compressed_bodies_are_refused_unread(client: httpx.AsyncClient, encoding: str) -> None:
    async def never_read() -> AsyncGenerator[bytes, None]:
        raise AssertionError("the body was read")
        yield b""

    headers = JSON | {"content-encoding": encoding}
    response = await client.post("/v1/completions", content=never_read(), headers=headers)
    check(response, 415, "unsupported_content_encoding")


async def test_identity_is_no_compression(client: httpx.AsyncClient) -> None:
    headers = JSON | {"content-encoding": "identity"}
    assert (await client.post("/v1/completions", content=BODY, headers=headers)).status_code == 200


async def test_a_declared_length_over_the_limit_is_refused_unread(make_client: ClientFactory) -> None:
    client = make_client(max_body_bytes=1024)
    for length in ("1025", "9" * 400):
        response = await client.post(
            "/v1/completions", content=BODY, headers=JSON | {"content-length": length}
        )
        check(response, 413, "body_too_large")


async def test_bytes_are_counted_while_they_arrive(make_client: ClientFactory) -> None:
    num_sent = 0

    async def endless() -> AsyncGenerator[bytes, None]:
        nonlocal num_sent
        while True:
            num_sent += 512
            yield b" " * 512

    response = await make_client(max_body_bytes=4096).post("/v1/completions", content=endless(), headers=JSON)
    check(response, 413, "body_too_large")
    assert num_sent <= 4096 + 512


async def test_a_body_of_exactly_the_limit_is_taken(make_client: ClientFactory) -> None:
    client = make_client(max_body_bytes=1024)
    content = b'{"prompt":"x"' + b" " * (1024 - len(BODY)) + b"}"
    assert (await client.post("/v1/completions", content=content, headers=JSON)).status_code == 200


async def test_a_body_in_large_pieces_is_decoded_in_a_thread(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    pool.max_model_len = 10**6
    content = b'{"prompt":[' + b"12," * 100_000 + b"13]}"
    assert (await client.post("/v1/completions", content=content, headers=JSON)).status_code == 200
    assert len(pool.seen[0].request.prompt_token_ids) == 100_001


async def raw(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    target = urlsplit(url)
    return await asyncio.open_connection(target.hostname, target.port)


@pytest.mark.parametrize(
    "pieces", [[], [b"4\r\n"], [b'2\r\n{"\r\n', b"1\r\np\r\n"]], ids=["none", "half", "some"]
)
async def test_a_body_that_does_not_arrive_in_time_is_408(
    make_server: ServerFactory, pieces: list[bytes]
) -> None:
    reader, writer = await raw(await make_server(body_timeout_s=0.15))
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n" + b"".join(pieces)
    )
    async with asyncio.timeout(30):
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"request_timeout"' in answer
    writer.close()


async def test_tiny_chunks_make_a_valid_body(make_server: ServerFactory) -> None:
    reader, writer = await raw(await make_server())
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n" + chunks
    )
    async with asyncio.timeout(30):
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    writer.close()


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
async def test_a_client_that_sends_all_before_it_reads_gets_its_413_and_the_next_answer(
    make_server: ServerFactory, chunked: bool
) -> None:
    url = await make_server(max_body_bytes=1024)

    def talk() -> list[int]:
        # Sends the whole body, blocking, before it looks for an answer.
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
        statuses = []
        for size in (8 * 2**20, len(BODY)):
            body = BODY + b" " * (size - len(BODY))
            connection.request(
                "POST", "/v1/completions", iter([body]) if chunked else body, JSON, encode_chunked=chunked
            )
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
        connection.close()
        return statuses

    assert await asyncio.to_thread(talk) == [413, 200]


async def test_a_body_that_was_refused_is_not_read_for_ever(make_server: ServerFactory) -> None:
    reader, writer = await raw(await make_server(max_body_bytes=1024, header_timeout_s=3))
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    async with asyncio.timeout(20):
        assert (await reader.readline()).startswith(b"HTTP/1.1 415 ")
        writer.write(b"1\r\nx\r\n")
        # Until the server closes it.
        with contextlib.suppress(ConnectionError):
            await reader.read()
    writer.close()


async def test_expect_100_that_was_not_answered_ends_the_connection(make_server: ServerFactory) -> None:
    # What follows could be the body or a request.
    reader, writer = await raw(await make_server(api_key_hashes=("0" * 64,)))
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: 50\r\nexpect: 100-continue\r\n\r\n"
    )
    async with asyncio.timeout(30):
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"\r\nconnection: close\r\n" in answer
    writer.close()


async def test_expect_100_is_refused_before_the_body_is_asked_for(make_server: ServerFactory) -> None:
    reader, writer = await raw(await make_server(max_body_bytes=1024))
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: 99999\r\nexpect: 100-continue\r\n\r\n"
    )
    async with asyncio.timeout(30):
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
    writer.close()


async def test_beyond_the_bound_of_open_requests_clients_get_429_and_probes_still_answer(
    make_client: ClientFactory, pool: FakePool
) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def script(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        begun.set()
        await release.wait()
        yield OutputDelta(0, "a", [97], finish_reason="stop")

    pool.script = script
    client = make_client(max_open_requests=1)
    first = asyncio.create_task(client.post("/v1/completions", json={"prompt": "x"}))
    await begun.wait()
    refused = await client.post("/v1/completions", json={"prompt": "x"})
    check(refused, 429, "overloaded")
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert (await client.get("/health")).status_code == 200
    assert 'frontend_open_requests{frontend="frontend-0"} 1.0' in (await client.get("/metrics")).text
    release.set()
    assert (await first).status_code == 200
    assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 200
