"""The Responses API over a WebSocket: the same events, one response at a time, within the same limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from splitserve.engine_core.errors import EngineRequestError, OverloadedError
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.http.api_keys import hash_key
from splitserve.frontend.http.websocket import session
from splitserve.frontend.http.websocket.socket import MAX_WAITING, Socket
from tests.frontend.http.app_fixtures import ServerFactory, serving
from tests.frontend.http.fake_pool import FakePool, deltas_of
from tests.frontend.responses.recorded import events, response_of

PATH = "/v1/responses"
Json = dict[str, Any]


def opened(url: str, **options: Any) -> connect:
    return connect(url.replace("http", "ws", 1) + PATH, **({"max_size": None, "open_timeout": 30} | options))


@pytest.fixture
async def url(make_server: ServerFactory) -> str:
    return await make_server()


@pytest.fixture
async def ws(url: str) -> AsyncGenerator[ClientConnection, None]:
    async with asyncio.timeout(60), opened(url) as client:
        yield client


async def send(ws: ClientConnection, **body: Any) -> None:
    await ws.send(json.dumps({"type": "response.create", "input": "hello"} | body))


async def turn(ws: ClientConnection) -> list[Json]:
    """The events of the next response, or the error."""
    found: list[Json] = []
    while not found or found[-1]["type"] not in (
        "response.completed",
        "response.incomplete",
        "response.failed",
        "error",
    ):
        found.append(json.loads(await ws.recv()))
    return found


async def respond(ws: ClientConnection, **body: Any) -> Json:
    await send(ws, **body)
    return response_of(await turn(ws))


async def refusal(ws: ClientConnection, **body: Any) -> Json:
    await send(ws, **body)
    (found,) = await turn(ws)
    assert found["type"] == "error"
    return {"status": found["status"]} | found["error"]


async def closing_code(ws: ClientConnection) -> int:
    with contextlib.suppress(ConnectionClosed):
        async for _ in ws:
            pass
    assert ws.close_code is not None
    return ws.close_code


def anonymous(found: Json) -> Json:
    output = [{**item, "id": None} for item in found["output"]]
    return found | {"id": None, "created_at": None, "completed_at": None, "output": output}


async def test_a_response_has_the_events_of_a_stream(url: str, ws: ClientConnection) -> None:
    async with httpx.AsyncClient(base_url=url) as client:
        streamed = await client.post(PATH, json={"input": "hello", "stream": True})
    assert anonymous(await respond(ws)) == anonymous(response_of(events(streamed.text)))


async def test_responses_come_one_after_the_other(ws: ClientConnection, pool: FakePool) -> None:
    for name in ("one", "two", "three"):
        await send(ws, input=name, request_id=name)
    assert [response_of(await turn(ws))["id"] for _ in range(3)] == ["resp_one", "resp_two", "resp_three"]
    assert [len(pool.closed), len(pool.seen)] == [3, 3]


async def test_the_last_response_can_be_continued_though_nothing_is_kept(
    ws: ClientConnection, pool: FakePool
) -> None:
    first = await respond(ws, input="first")
    assert first["store"] is False
    second = await respond(ws, input="second", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    rendered = pool.seen[-1].request.prompt_token_ids
    assert bytes(rendered).decode() == "user: first\nassistant: Hi there\nuser: second\nassistant: "
    # Only the last is remembered.
    found = await refusal(ws, previous_response_id=first["id"])
    assert (found["status"], found["code"]) == (400, "previous_response_not_found")
    assert found["param"] == "previous_response_id"
    assert await respond(ws, previous_response_id=second["id"])


async def test_another_connection_remembers_nothing(url: str, ws: ClientConnection) -> None:
    first = await respond(ws)
    async with opened(url) as other:
        found = await refusal(other, previous_response_id=first["id"])
    assert found["code"] == "previous_response_not_found"


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1},
        {"input": [{"type": "function_call_output", "call_id": "c", "output": "4"}]},
    ],
)
async def test_what_could_not_be_continued_is_forgotten(ws: ClientConnection, bad: Json) -> None:
    first = await respond(ws)
    assert (await refusal(ws, previous_response_id=first["id"], **bad))["status"] == 400
    found = await refusal(ws, previous_response_id=first["id"])
    assert found["code"] == "previous_response_not_found"


async def test_what_is_kept_is_continued_from_anywhere(make_server: ServerFactory, tmp_path: Any) -> None:
    url = await make_server(response_store=str(tmp_path / "responses.db"))
    async with opened(url) as ws:
        kept = await respond(ws)
        assert kept["store"] is True
        await respond(ws, store=False)
        assert (await respond(ws, previous_response_id=kept["id"]))["status"] == "completed"
    async with opened(url) as other:
        assert (await respond(other, previous_response_id=kept["id"]))["status"] == "completed"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"type": "response.cancel"}, "type", "unsupported_parameter"),
        ({"type": None}, "type", "unsupported_parameter"),
        ({"stream": False}, "stream", "unsupported_parameter"),
        ({"stream": 1}, "stream", "unsupported_parameter"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"generate": False}, "generate", "unsupported_parameter"),
        ({"stream_id": "a"}, "stream_id", "unsupported_parameter"),
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"model": "another"}, "model", "model_not_found"),
        ({"input": None}, "input", "invalid_value"),
    ],
    ids=str,
)
async def test_what_is_refused_is_an_event_and_the_socket_lives_on(
    ws: ClientConnection, body: Json, param: str, code: str
) -> None:
    found = await refusal(ws, **body)
    assert (found["status"], found["param"], found["code"]) == (404 if "model" in body else 400, param, code)
    assert await respond(ws, stream=True, background=False, generate=True, stream_id=None)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"type": "response.create", "type": "x"}', "[" * 999])
async def test_a_message_that_is_no_object_is_refused(ws: ClientConnection, text: str) -> None:
    await ws.send(text)
    (found,) = await turn(ws)
    assert (found["type"], found["status"], found["error"]["code"]) == ("error", 400, "invalid_json")
    assert await respond(ws)


async def test_a_failure_in_a_stream_ends_its_response_only(ws: ClientConnection, pool: FakePool) -> None:
    has_begun = asyncio.Event()

    async def fail(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        yield deltas_of("Hi there", request)[0]
        await has_begun.wait()
        raise EngineRequestError("request_failed", "the engine's secret")

    pool.script = fail
    await send(ws)
    await ws.recv()
    has_begun.set()
    *_, last = await turn(ws)
    assert last["type"] == "response.failed"
    assert "secret" not in json.dumps(last)
    pool.script = None
    assert await respond(ws)


async def test_a_full_engine_is_an_error_with_its_status(ws: ClientConnection, pool: FakePool) -> None:
    async def refuse(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        raise OverloadedError("the queue is full")
        yield

    pool.script = refuse
    assert (await refusal(ws))["status"] == 429


class Endless:
    """A script that goes on until it is closed."""

    async def __call__(self, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        while True:
            yield OutputDelta(0, "x" * 10_000, [1])
            await asyncio.sleep(0)


async def test_a_client_that_hangs_up_ends_its_response(ws: ClientConnection, pool: FakePool) -> None:
    pool.script = Endless()
    await send(ws)
    await ws.recv()
    await ws.close()
    await pool.num_closed.wait()
    assert len(pool.closed) == 1


async def test_a_connection_that_breaks_ends_its_response(ws: ClientConnection, pool: FakePool) -> None:
    pool.script = Endless()
    await send(ws)
    await ws.recv()
    ws.transport.abort()
    await pool.num_closed.wait()
    assert len(pool.closed) == 1


async def test_a_client_that_does_not_read_is_cut(make_server: ServerFactory, pool: FakePool) -> None:
    pool.script = Endless()
    url = await make_server(write_stall_s=0.2)
    async with asyncio.timeout(60), opened(url, max_queue=1) as ws:
        await send(ws)
        await pool.num_closed.wait()
    assert len(pool.closed) == 1


async def test_one_response_that_hangs_holds_up_no_other_socket(url: str, pool: FakePool) -> None:
    pool.script = Endless()
    async with asyncio.timeout(60), opened(url) as first, opened(url) as second:
        await send(first)
        await first.recv()
        pool.script = None
        assert await respond(second)


async def test_a_message_that_is_too_large_closes_the_socket(make_server: ServerFactory) -> None:
    url = await make_server(max_body_bytes=2000)
    async with opened(url) as ws:
        assert await respond(ws, input="x" * 100)
        with contextlib.suppress(ConnectionClosed):
            await ws.send("x" * 3000)
        assert await closing_code(ws) == 1009


async def test_a_message_that_arrives_too_slowly_closes_the_socket(make_server: ServerFactory) -> None:
    async with opened(await make_server(body_timeout_s=0.2)) as ws:
        assert await respond(ws)
        # The head of a frame that announces 100 bytes, and none of them.
        ws.transport.write(b"\x81\xe4abcd")
        assert await closing_code(ws) == 1008


async def test_bytes_are_no_message(ws: ClientConnection) -> None:
    await ws.send(b"{}")
    assert await closing_code(ws) == 1003


async def test_too_many_messages_at_once_close_the_socket(ws: ClientConnection, pool: FakePool) -> None:
    pool.script = Endless()
    await send(ws)
    await ws.recv()
    with contextlib.suppress(ConnectionClosed):
        for _ in range(MAX_WAITING + 3):
            await send(ws)
    assert await closing_code(ws) == 1008
    await pool.num_closed.wait()


async def test_pings_are_answered_during_a_response_too(ws: ClientConnection, pool: FakePool) -> None:
    pool.script = Endless()
    await send(ws)
    pinged = asyncio.ensure_future(await ws.ping())
    while not pinged.done():
        await ws.recv()
    assert pinged.result() >= 0


async def test_a_message_may_come_in_pieces(ws: ClientConnection) -> None:
    await ws.send(iter(['{"type": "response.', 'create", "input"', ': "hello"}']))
    assert response_of(await turn(ws))["status"] == "completed"


async def test_the_age_of_a_socket_is_bounded(
    make_server: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_AGE_S", 0.0)
    async with opened(await make_server()) as ws:
        (found,) = await turn(ws)
        assert (found["status"], found["error"]["code"]) == (400, "websocket_connection_limit_reached")
        assert await closing_code(ws) == 1000


async def test_keys_are_asked_for_at_the_door(make_server: ServerFactory) -> None:
    url = await make_server(api_key_hashes=[hash_key("secret")])
    with pytest.raises(InvalidStatus) as caught:
        await opened(url)
    assert caught.value.response.status_code == 401
    async with opened(url, additional_headers={"authorization": "Bearer secret"}) as ws:
        assert await respond(ws)


@pytest.mark.parametrize(
    ("origin", "is_allowed"),
    [("http://evil.example", False), ("https://good.example", True), ("null", False), (None, True)],
)
async def test_pages_of_other_origins_need_leave(
    make_server: ServerFactory, origin: str | None, is_allowed: bool
) -> None:
    url = await make_server(allowed_origins=["https://good.example"])
    if is_allowed:
        async with opened(url, origin=origin) as ws:
            assert await respond(ws)
        return
    with pytest.raises(InvalidStatus) as caught:
        await opened(url, origin=origin)
    assert caught.value.response.status_code == 403
    assert json.loads(caught.value.response.body)["error"]["code"] == "origin_not_allowed"


async def test_pages_of_this_server_need_none(url: str) -> None:
    async with opened(url, origin=url) as ws:
        assert await respond(ws)


async def test_a_get_that_opens_no_socket_is_told_so(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as client:
        plain = await client.get(PATH)
        assert (plain.status_code, plain.json()["error"]["code"]) == (426, "upgrade_required")
        headers = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        asking = await client.get(f"{PATH}?stream=true", headers=headers)
        assert (asking.status_code, asking.json()["error"]["code"]) == (400, "bad_handshake")
        keyless = await client.get(PATH, headers=headers)
        assert (keyless.status_code, keyless.json()["error"]["code"]) == (400, "bad_handshake")


async def test_a_socket_that_waits_is_closed_when_the_server_ends(pool: FakePool) -> None:
    async with asyncio.timeout(60), serving(pool) as (url, server), opened(url) as ws:
        assert await respond(ws)
        server.should_exit = True
        assert await closing_code(ws) == 1001


async def test_a_response_in_progress_is_finished_when_the_server_ends(
    pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, is_told, tell = asyncio.Event(), asyncio.Event(), Socket.on_drain

    def on_drain(told: Socket) -> None:
        tell(told)
        is_told.set()

    monkeypatch.setattr(Socket, "on_drain", on_drain)

    async def wait(request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        first, *rest = deltas_of("Hi there", request)
        yield first
        await go_on.wait()
        for delta in rest:
            yield delta

    pool.script = wait
    async with asyncio.timeout(60), serving(pool) as (url, server), opened(url) as ws:
        await send(ws)
        await send(ws)
        begun = [json.loads(await ws.recv()) for _ in range(2)]
        server.should_exit = True
        await is_told.wait()
        go_on.set()
        assert response_of([*begun, *await turn(ws)])["status"] == "completed"
        # The one that waited is not begun.
        assert await closing_code(ws) == 1001
    assert len(pool.seen) == 1


async def test_each_response_has_its_own_line_in_the_log(
    ws: ClientConnection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        await respond(ws)
    await ws.close()
    while "status=101" not in caplog.text:
        await asyncio.sleep(0)
    lines = [line for line in caplog.text.splitlines() if f"path={PATH}" in line]
    assert ["method=POST" in line and "status=200" in line for line in lines] == [True, True, False]
    assert "method=GET" in lines[-1]
    assert "messages=2" in lines[-1]


async def test_frames_before_the_handshake_are_no_requests(url: str) -> None:
    """What follows the head of a request for a socket at once is never taken for a request of HTTP."""
    target = urlsplit(url)
    with socket.create_connection((target.hostname, target.port)) as client:
        client.setblocking(False)
        head = (
            f"GET {PATH} HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, head.encode() + b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = await loop.sock_recv(client, 4096)
        assert answer.startswith(b"HTTP/1.1 101 ")
        assert b"HTTP/1.1 200" not in answer
