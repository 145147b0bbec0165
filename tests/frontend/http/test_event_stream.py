"""One event stream between a source and a connection that the test plays itself."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncGenerator, Callable

import pytest
from starlette.types import Message, Scope

from engine_core.errors import OverloadedError
from frontend.body_writer import BODY_BYTES_STATE, BODY_EXTENSION, BodyWriter
from frontend.limits import OpenRequest
from frontend.sse import EventStream
from tests.frontend.http.fake_pool import turns


class Rig:
    """A stream whose source, connection and ASGI server the test plays itself."""

    def __init__(self, keep_alive_s: float = 0.0) -> None:
        self.finished = False
        self.ready: list[bytes | Exception] = []
        self.num_closed = 0
        self.sent: list[bytes] = []
        self.paused = False
        self.on_close = asyncio.Event()
        self.scope: Scope = {"type": "http", "state": {"log": {}}, "extensions": {BODY_EXTENSION: self.make}}
        self.task = asyncio.create_task(EventStream(self, keep_alive_s)(self.scope, self.receive, self.send))

    # The connection.

    def make(self, on_change: Callable[[], None]) -> BodyWriter:
        self.writer = BodyWriter(self, on_change, paused=self.paused)
        return self.writer

    def is_closing(self) -> bool:
        return False

    def write(self, chunk: bytes) -> None:
        self.sent.append(chunk.partition(b"\r\n")[2][:-2])

    async def send(self, message: Message) -> None:
        self.sent.append(b"head" if "status" in message else message["body"])

    async def receive(self) -> Message:
        raise AssertionError("the body has been read")

    # The source.

    async def open(self, on_ready: Callable[[], None]) -> None:
        self.on_ready = on_ready

    def take(self) -> bytes:
        items, self.ready = self.ready, []
        for item in items:
            if isinstance(item, Exception):
                raise item
        return b"".join(items)

    def close(self) -> None:
        self.num_closed += 1

    async def bring(self, *items: bytes | Exception, last: bool = False) -> None:
        """Make items ready and let the stream's task have its turns."""
        self.ready += items
        self.finished = last
        self.on_ready()
        await turns()


@pytest.fixture
async def rig() -> AsyncGenerator[Rig, None]:
    rig = Rig()
    await turns()
    yield rig
    rig.task.cancel()
    await asyncio.gather(rig.task, return_exceptions=True)


async def test_an_error_that_comes_as_the_client_leaves_is_nobodys(rig: Rig) -> None:
    loop, unheard = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    rig.writer.lose()
    await rig.bring(OverloadedError("full"))
    await rig.task
    assert rig.scope["state"]["log"] == {"client_gone": True}
    assert (rig.sent, rig.num_closed) == ([], 1)
    gc.collect()
    await asyncio.sleep(0)
    assert not unheard


async def test_events_are_written_without_a_turn_of_the_task(rig: Rig) -> None:
    await rig.bring(b"a")
    assert rig.sent == [b"head", b"a"]
    rig.ready = [b"b", b"c"]
    rig.on_ready()
    assert rig.sent[2:] == [b"bc"]
    await rig.bring(b"d", last=True)
    await rig.task
    assert rig.sent[3:] == [b"d", b"data: [DONE]\n\n"]
    assert rig.scope["state"][BODY_BYTES_STATE] == len(b"abcd")


async def test_what_comes_while_the_head_is_sent_follows_it(rig: Rig) -> None:
    for item in (b"a", b"b"):
        rig.ready.append(item)
        rig.on_ready()
    await turns()
    assert rig.sent == [b"head", b"ab"]


async def test_an_error_before_the_head_is_sent_keeps_its_status(rig: Rig) -> None:
    rig.ready.append(b"a")
    rig.on_ready()
    await rig.bring(OverloadedError("full"))
    await rig.task
    assert rig.sent[0] == b"head"
    assert b'"code":"overloaded"' in rig.sent[1]
    assert b"data:" not in rig.sent[1]


async def test_while_the_client_does_not_read_nothing_is_taken(rig: Rig) -> None:
    await rig.bring(b"a")
    rig.writer.set_paused(True)
    await rig.bring(b"b")
    await rig.bring(b"c", last=True)
    assert rig.sent == [b"head", b"a"]
    rig.finished = False
    rig.writer.set_paused(False)
    assert rig.sent[2:] == [b"bc"]
    assert not rig.task.done()


async def test_a_blocked_request_is_known_since_when(rig: Rig) -> None:
    rig.task.cancel()
    request = OpenRequest(rig.task)
    other = Rig()
    other.scope["state"]["open_request"] = request
    await turns()
    other.writer.set_paused(True)
    assert time.monotonic() - request.blocked_since < 60
    other.writer.set_paused(False)
    assert request.blocked_since is None
    other.task.cancel()


async def test_a_cancelled_stream_closes_its_source_and_writes_no_more(rig: Rig) -> None:
    await rig.bring(b"a")
    rig.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rig.task
    assert (rig.sent, rig.num_closed) == ([b"head", b"a"], 1)
