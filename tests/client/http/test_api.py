"""An API is asked over HTTP, and each way in which that fails is told."""

from __future__ import annotations

import socket

import pytest

from splitserve.client.http.address import Address
from splitserve.client.http.answers import ModelList
from splitserve.client.http.api import Api
from splitserve.client.http.errors import ApiError
from tests.client.scripted_server import STREAM_HEAD, Asked, answer, chunk, scripted


async def test_headers_and_bodies_are_sent_and_json_is_returned() -> None:
    seen: list[Asked] = []

    def script(asked: Asked) -> list[bytes]:
        seen.append(asked)
        return [answer("200 OK", b'{"data": [{"id": "m", "more": 1}]}')]

    async with scripted(script) as api:
        models = await api.get(api.path("/models"), ModelList)
        await api.post("/v1/x", b'{"a": 1}')
    assert models.data[0].id == "m"
    assert seen[0].head.startswith("GET /v1/models HTTP/1.1")
    assert "Content-Type: application/json" in seen[1].head
    assert seen[1].body == b'{"a": 1}'


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "too long", "code": "x"}}', "400: too long"),
        (b'{"error": "plain"}', "400: plain"),
        (b'{"detail": "Not Found"}', "400: Not Found"),
        (b"<html>oops</html>", "400: <html>oops</html>"),
        (b"", "400: Bad Request"),
    ],
)
async def test_a_refusal_is_told_in_the_words_of_the_server(body: bytes, said: str) -> None:
    async with scripted(lambda _: [answer("400 Bad Request", body)]) as api:
        with pytest.raises(ApiError) as caught:
            await api.post("/v1/x", b"{}")
    assert str(caught.value) == said
    assert caught.value.body == body
    assert not caught.value.may_pass


async def test_too_much_load_may_pass_after_the_time_that_the_server_names() -> None:
    busy = answer("429 Too Many Requests", b"", "Retry-After: 7")
    async with scripted(lambda _: [busy]) as api:
        with pytest.raises(ApiError) as caught:
            await api.get_bytes("/v1/x")
    assert caught.value.may_pass
    assert caught.value.retry_after_s == 7.0


async def test_events_come_with_their_times_in_order() -> None:
    pieces = [STREAM_HEAD, chunk(b"1"), chunk(b"2") + chunk(b"3"), chunk(b"[DONE]")]
    async with scripted(lambda _: pieces) as api:
        arrivals = [arrival async for arrival in api.stream("/v1/x", b"{}")]
    assert [event for arrival in arrivals for event in arrival.events] == [b"1", b"2", b"3"]
    times = [arrival.at_s for arrival in arrivals]
    assert times == sorted(times)


async def test_a_connection_that_is_lost_in_the_middle_is_an_error_that_may_pass() -> None:
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\ndata: 1\n\n"
    async with scripted(lambda _: [cut]) as api:
        with pytest.raises(ApiError) as caught:
            [arrival async for arrival in api.stream("/v1/x", b"{}")]
    assert caught.value.may_pass


async def test_nobody_there_is_an_error_that_names_the_url() -> None:
    async with Api(Address("http://localhost", socket_path="/nowhere/api.sock")) as api:
        with pytest.raises(ApiError, match=r"http://localhost: no connection to .*api\.sock: No such file"):
            await api.get_bytes("/v1/models")


async def test_a_server_that_does_not_listen_is_told_in_plain_words() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with Api(Address(url)) as api:
            with pytest.raises(ApiError) as caught:
                await api.get_bytes("/v1/models")
    assert str(caught.value) == f"{url}: no connection: Connection refused"


async def test_an_answer_of_another_shape_is_an_error() -> None:
    async with scripted(lambda _: [answer("200 OK", b"[]")]) as api:
        with pytest.raises(ApiError, match="not as OpenAI's"):
            await api.get("/v1/models", ModelList)
