"""Streams over real connections, handed over to native code: the same answers, full sockets, lost clients."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.ipc.wire import ModelInfo
from splitserve.frontend.engines.connection.token_relay import Relayed, RelayedStream, Route, TokenRelay
from splitserve.frontend.engines.pool import EnginePool
from tests.frontend.app.simulated import Engine, simulated_engine
from tests.frontend.checkpoints import write_checkpoint
from tests.frontend.engines.fake_engine import FakeEngine
from tests.frontend.engines.messages import end, outputs, tokens
from tests.frontend.http.app_fixtures import serving
from tests.frontend.http.response.sse_events import events

pytestmark = pytest.mark.system

DEADLINE_S = 60.0
LOOPS = pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
PATHS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hello world"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
}
# A stop string that never comes keeps a stream in Python, and its bytes are the same.
IN_PYTHON = {"stop": ["\u0001never"]}
STREAM = {"max_tokens": 200, "ignore_eos": True, "seed": 5, "stream": True}
SMALL_BUFFER_BYTES = 4096


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine slow enough that most tokens are an event of their own."""
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("model"))
    with simulated_engine(checkpoint, "--simulated-step-ms", "1") as engine:
        yield engine


class HandOvers:
    """Counts the hand-overs of a test and what came back from full sockets; may make the sockets small."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num = 0
        self.num_unsent_bytes = 0
        self.fd = -1
        self.small_sockets = False
        self._attach: Callable[..., RelayedStream] = TokenRelay.attach
        self._detach = TokenRelay.detach
        monkeypatch.setattr(TokenRelay, "attach", lambda *args: self._count(*args))
        monkeypatch.setattr(TokenRelay, "detach", lambda *args: self._count_back(*args))

    def _count(self, relay: TokenRelay, handle: int, route: Route, *args: Any) -> RelayedStream:
        self.num += 1
        self.fd = route.fd
        if self.small_sockets:
            with socket.socket(fileno=os.dup(route.fd)) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER_BYTES)
        return self._attach(relay, handle, route, *args)

    def _count_back(self, relay: TokenRelay, handle: int) -> Relayed:
        # Closed before its stream is taken back, a descriptor would have no state to ask for.
        os.fstat(self.fd)
        back = self._detach(relay, handle)
        self.num_unsent_bytes += len(back.unsent)
        return back


@pytest.fixture
def hand_overs(monkeypatch: pytest.MonkeyPatch) -> HandOvers:
    return HandOvers(monkeypatch)


Scenario = Callable[[str, EnginePool], Coroutine[object, object, None]]


def run(engine: Engine, make_loop: Callable[[], asyncio.AbstractEventLoop], scenario: Scenario) -> None:
    """Run a scenario against a frontend over the engine; afterwards nothing is handed over any more."""

    async def main() -> None:
        pool = EnginePool([engine.address], "http-test")
        async with serving(pool) as (url, _), asyncio.timeout(DEADLINE_S):
            async with httpx.AsyncClient() as client:
                assert (await client.get(f"{url}/live")).status_code == 200
            await pool.wait_ready(DEADLINE_S)
            await scenario(url, pool)
            while num_handed_over(pool) or pool.stats().num_open:
                await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())


def num_handed_over(pool: EnginePool) -> int:
    return sum(replica.client.session.sequences.num_relayed for replica in pool._replicas)


def shown(text: str) -> tuple[str, list[object], Any]:
    """Text, finish reasons and usage of a stream; how steps were joined into events is left out."""
    chunks = events(text)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    pieces = [c["text"] if "text" in c else c["delta"].get("content", "") for c in choices]
    return (
        "".join(pieces),
        [c["finish_reason"] for c in choices if c["finish_reason"]],
        chunks[-1].get("usage"),
    )


@LOOPS
@pytest.mark.parametrize("path", PATHS)
def test_native_and_python_streams_show_the_same(
    engine: Engine, hand_overs: HandOvers, make_loop: Callable[[], asyncio.AbstractEventLoop], path: str
) -> None:
    body = PATHS[path] | STREAM | {"stream_options": {"include_usage": True}}

    async def scenario(url: str, pool: EnginePool) -> None:
        async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
            native = (await client.post(url + path, json=body)).text
            assert hand_overs.num >= 1
            hand_overs.num = 0
            python = (await client.post(url + path, json=body | IN_PYTHON)).text
            assert hand_overs.num == 0
        text, finish_reasons, usage = shown(native)
        assert (text, finish_reasons, usage) == shown(python)
        assert finish_reasons == ["length"]
        assert usage["completion_tokens"] == 200
        kinds = {tuple(chunk) for chunk in events(native)}
        assert kinds == {tuple(chunk) for chunk in events(python)}

    run(engine, make_loop, scenario)


@LOOPS
def test_streams_that_are_parsed_stay_with_python(
    engine: Engine, hand_overs: HandOvers, make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    path = "/v1/chat/completions"
    body = PATHS[path] | STREAM

    async def main() -> None:
        pool, found = EnginePool([engine.address], "http-test"), []
        async with serving(pool, reasoning_parser="think") as (url, _), httpx.AsyncClient() as client:
            assert (await client.get(f"{url}/live")).status_code == 200
            await pool.wait_ready(DEADLINE_S)
            for more in ({}, {"stop": IN_PYTHON["stop"]}):
                response = await client.post(url + path, json=body | more, timeout=DEADLINE_S)
                found.append(shown(response.text))
        assert hand_overs.num == 0
        assert found[0] == found[1]
        assert found[0][1] == ["length"]

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())


@LOOPS
def test_a_client_that_does_not_read_for_a_while_gets_all_of_it(
    addresses: list[str],
    model: ModelInfo,
    hand_overs: HandOvers,
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """A scripted engine goes on until the socket is full, however many tokens come together."""
    hand_overs.small_sockets = True

    async def main() -> None:
        pool = EnginePool(addresses[:1], "http-test")
        async with FakeEngine(addresses[0], model) as engine, serving(pool) as (url, _):
            async with asyncio.timeout(DEADLINE_S):
                async with httpx.AsyncClient() as client:
                    assert (await client.get(f"{url}/live")).status_code == 200
                await pool.wait_ready(DEADLINE_S)
                (letter,) = pool.find_model("").assets.tokenizer.encode("a")
                with await ask_and_not_read(f"{url}/v1/completions") as reader:
                    handle = (await engine.receive(AddRequest)).handle
                    count = 0
                    while not hand_overs.num_unsent_bytes:
                        await engine.send(tokens(handle, [letter], count))
                        count += 1
                    await engine.send(tokens(handle, [letter] * 99, count))
                    await engine.send(outputs([(handle, letter, count + 99)], [end(handle)]))
                    while pool.stats().num_open:
                        await asyncio.sleep(0)
                    received = b""
                    while not received.endswith(b"\r\n0\r\n\r\n"):
                        received += await asyncio.get_running_loop().sock_recv(reader, 65536)
        text = b"".join(dechunked(received.partition(b"\r\n\r\n")[2])).decode()
        assert shown(text)[:2] == ("a" * (count + 100), ["length"])

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())


async def ask_and_not_read(url: str) -> socket.socket:
    """Ask for a stream from a socket with a tiny buffer, which nobody reads yet."""
    request = httpx.Request("POST", url, json=PATHS["/v1/completions"] | STREAM)
    loop, client = asyncio.get_running_loop(), socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    client.setblocking(False)
    await loop.sock_connect(client, (request.url.host, request.url.port))
    head = f"POST {request.url.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    length = f"content-length: {len(request.content)}\r\n\r\n"
    await loop.sock_sendall(client, (head + length).encode() + request.content)
    return client


def dechunked(data: bytes) -> list[bytes]:
    """The data of all chunks; their sizes must be right."""
    found = []
    while data:
        size, _, data = data.partition(b"\r\n")
        found.append(data[: int(size, 16)])
        assert data[int(size, 16) :].startswith(b"\r\n")
        data = data[int(size, 16) + 2 :]
    return found


@LOOPS
def test_a_client_that_hangs_up_is_taken_back_before_its_descriptor_is_closed(
    engine: Engine,
    hand_overs: HandOvers,
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    body = PATHS["/v1/completions"] | STREAM | {"max_tokens": 400}

    async def scenario(url: str, pool: EnginePool) -> None:
        async with (
            httpx.AsyncClient(timeout=DEADLINE_S) as client,
            client.stream("POST", f"{url}/v1/completions", json=body) as response,
        ):
            lines = response.aiter_lines()
            while not num_handed_over(pool):
                await anext(lines)
        while pool.stats().num_open:
            await asyncio.sleep(0)
        assert (hand_overs.num, num_handed_over(pool)) == (1, 0)

    run(engine, make_loop, scenario)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
@LOOPS
def test_encrypted_streams_stay_with_python(
    engine: Engine,
    hand_overs: HandOvers,
    make_loop: Callable[[], asyncio.AbstractEventLoop],
    tmp_path: Path,
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key)]
    command += ["-out", str(certificate), "-days", "2", "-subj", "/CN=x"]
    subprocess.run(command, check=True, capture_output=True)
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE

    async def main() -> None:
        pool = EnginePool([engine.address], "http-test")
        files = {"ssl_keyfile": str(key), "ssl_certfile": str(certificate)}
        async with serving(pool, **files) as (url, _), httpx.AsyncClient(verify=trusting) as client:
            assert (await client.get(f"{url}/live")).status_code == 200
            await pool.wait_ready(DEADLINE_S)
            body = PATHS["/v1/completions"] | STREAM
            response = await client.post(f"{url}/v1/completions", json=body, timeout=DEADLINE_S)
            assert events(response.text)[-1]["choices"][0]["finish_reason"] == "length"
        assert hand_overs.num == 0

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())
