"""One event stream between a source and a connection that the test plays itself."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from array import array
from collections.abc import AsyncGenerator, Callable

import pytest
from starlette.types import Message, Scope

from splitserve.engine_core.errors import OverloadedError
from splitserve.frontend.engines.connection.token_relay import Relayed, RelayedStream
from splitserve.frontend.http.connection.body_writer import BODY_BYTES_STATE, BODY_EXTENSION, BodyWriter
from splitserve.frontend.http.limits import InFlightRequest
from splitserve.frontend.http.response.keep_alive import KeepAlive, SilentStream, TimerLoop
from splitserve.frontend.http.response.sse import EventStream
from splitserve.frontend.http.slices import SliceQueue
from tests.frontend.http.fake_pool import turns


class FakeRelayed(RelayedStream):
    """What native code did: one event of five bytes."""

    def __init__(self, unsent: bytes = b"") -> None:
        self.back = Relayed(array("i"), 1, b"", unsent, 1.0, time.monotonic(), 5)


class LastStream(KeepAlive):
    """Remembers the stream that came last."""

    def add(self, stream: SilentStream, loop: TimerLoop) -> None:
        self.last = stream
        super().add(stream, loop)


class Rig(asyncio.Transport):
    """A stream whose source, connection and ASGI server the test plays itself."""

    def __init__(self, keep_alive_s: float = 0.0, slices: SliceQueue | None = None) -> None:
        self.finished = False
        self.behind = False
        self.in_event = False
        self.slices: list[bytes] = []
        self.keep_alive = LastStream(keep_alive_s)
        self.ready: list[bytes | Exception] = []
        self.num_closed = 0
        self.num_taken_back = 0
        self.sent: list[bytes] = []
        self.paused = False
        self.num_unsent = 0
        self.sslcontext: object = None
        self.handed_over: list[int] = []
        self.relayed: FakeRelayed | None = None
        self.on_close = asyncio.Event()
        self.scope: Scope = {"type": "http", "state": {"log": {}}, "extensions": {BODY_EXTENSION: self.make}}
        self.task = asyncio.create_task(
            EventStream(self, self.keep_alive, slices or SliceQueue())(self.scope, self.receive, self.send)
        )

    # The connection.

    def make(self, on_change: Callable[[], None]) -> BodyWriter:
        self.writer = BodyWriter(self, on_change, paused=self.paused)
        return self.writer

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self.num_unsent

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self.sslcontext if name == "sslcontext" else self

    def fileno(self) -> int:
        return 77

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data).partition(b"\r\n")[2][:-2])

    async def send(self, message: Message) -> None:
        self.sent.append(b"head" if "status" in message else message["body"])

    async def receive(self) -> Message:
        raise AssertionError("the body has been read")

    # The source.

    async def open(self, on_ready: Callable[[], None]) -> None:
        self.on_ready = on_ready

    def take(self) -> bytes:
        if self.behind:
            piece = self.slices.pop(0)
            self.behind = bool(self.slices)
            return piece
        items, self.ready = self.ready, []
        for item in items:
            if isinstance(item, Exception):
                raise item
        return b"".join(item for item in items if isinstance(item, bytes))

    def fast_path(self) -> Rig:
        return self

    def hand_over(self, fd: int) -> bool:
        self.handed_over.append(fd)
        return self.relayed is not None

    def last_write_s(self) -> float:
        assert self.relayed is not None
        return self.relayed.back.last_write_s

    def take_back(self) -> Relayed | None:
        assert self.relayed is not None
        self.num_taken_back += 1
        return self.relayed.back

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
    await turns()
    assert rig.sent[2:] == [b"bc"]
    assert not rig.task.done()


async def test_what_waits_beyond_a_slice_comes_in_turns_of_its_own(rig: Rig) -> None:
    rig.slices = [b"1", b"2", b"3"]
    await rig.bring(b"a")
    rig.behind = True
    rig.on_ready()
    assert rig.sent[2:] == [b"1"]
    # Whoever calls meanwhile does not get ahead of the queue.
    rig.on_ready()
    assert rig.sent[2:] == [b"1"]
    await turns()
    assert rig.sent[2:] == [b"1", b"2", b"3"]


async def test_many_that_read_again_in_one_turn_are_served_one_per_turn() -> None:
    slices, rigs = SliceQueue(), []
    for _ in range(8):
        rigs.append(Rig(slices=slices))
        await turns()
        await rigs[-1].bring(b"a")
        rigs[-1].writer.set_paused(True)
        await rigs[-1].bring(b"b")
    for each in rigs:
        each.writer.set_paused(False)
    served = []
    for _ in rigs:
        served.append(sum(each.sent[-1] == b"b" for each in rigs))
        await asyncio.sleep(0)
    assert served == list(range(8))
    for each in rigs:
        each.task.cancel()
    await asyncio.gather(*(each.task for each in rigs), return_exceptions=True)


async def test_many_that_leave_in_one_turn_are_ended_one_per_turn() -> None:
    slices = SliceQueue()
    rigs = [Rig(slices=slices) for _ in range(8)]
    await turns()
    for each in rigs:
        each.writer.lose()
    ended: list[int] = []
    while len(ended) < 8 or ended[-1] < 8:
        ended.append(sum(each.num_closed for each in rigs))
        await asyncio.sleep(0)
    assert max(after - before for before, after in itertools.pairwise(ended)) == 1


async def test_what_waits_for_a_client_that_is_cut_is_never_made(rig: Rig) -> None:
    await rig.bring(b"a")
    rig.writer.set_paused(True)
    await rig.bring(b"b")
    # As an aborted connection does it, which drops its buffer first.
    rig.writer.set_paused(False)
    rig.writer.lose()
    await rig.task
    assert (rig.sent, rig.ready) == ([b"head", b"a"], [b"b"])


async def test_a_comment_never_stands_inside_an_event(rig: Rig) -> None:
    await rig.bring(b"a")
    rig.in_event = True
    await rig.bring(b"beginning, ")
    stream = rig.keep_alive.last
    stream.break_silence()
    assert rig.sent[2:] == [b"beginning, "]
    rig.in_event = False
    await rig.bring(b"end")
    stream.break_silence()
    assert rig.sent[3:] == [b"end", b": keep-alive\n\n"]


async def test_a_stream_that_fails_inside_an_event_is_cut_without_last_words(rig: Rig) -> None:
    await rig.bring(b"a")
    rig.in_event = True
    await rig.bring(b"beginning, ")
    await rig.bring(ValueError("a bug of ours"))
    with pytest.raises(ValueError, match="a bug of ours"):
        await rig.task
    assert rig.sent[2:] == [b"beginning, "]


async def test_a_blocked_request_is_known_since_when(rig: Rig) -> None:
    rig.task.cancel()
    request = InFlightRequest(rig.task)
    other = Rig()
    other.scope["state"]["open_request"] = request
    await turns()
    other.writer.set_paused(True)
    assert request.blocked_since is not None
    assert time.monotonic() - request.blocked_since < 60
    other.writer.set_paused(False)
    assert request.blocked_since is None
    other.task.cancel()


async def test_a_stream_is_handed_over_after_its_first_event_and_taken_back_when_it_is_woken(
    rig: Rig,
) -> None:
    rig.relayed = FakeRelayed()
    await rig.bring(b"a")
    assert rig.handed_over == []
    await rig.bring(b"b")
    assert (rig.handed_over, rig.sent) == ([77], [b"head", b"a"])
    rig.num_unsent = 1
    await rig.bring(b"c", last=True)
    await rig.task
    assert rig.sent[2:] == [b"bc", b"data: [DONE]\n\n"]
    assert rig.scope["state"][BODY_BYTES_STATE] == len(b"a") + 5 + len(b"bc")


async def test_what_the_socket_did_not_take_goes_before_what_follows(rig: Rig) -> None:
    rig.relayed = FakeRelayed(unsent=b"5\r\nhello\r\n")
    await rig.bring(b"a")
    await rig.bring()
    rig.num_unsent = 1
    await rig.bring(b"b")
    assert rig.sent[2:] == [b"hello", b"b"]


async def test_a_stream_that_has_much_or_is_closed_is_not_handed_over(rig: Rig) -> None:
    rig.relayed = FakeRelayed()
    rig.slices, rig.behind = [b"a", b"b", b"c"], True
    await rig.bring()
    assert (rig.handed_over, rig.sent) == ([], [b"head", b"a", b"b", b"c"])
    rig.task.cancel()
    await asyncio.gather(rig.task, return_exceptions=True)
    # A wake-up may be on its way when a stream is closed.
    rig.on_ready()
    assert rig.handed_over == []


@pytest.mark.parametrize("obstacle", ["paused", "num_unsent", "sslcontext", "lost"])
async def test_only_a_plain_connection_with_an_empty_buffer_is_handed_over(rig: Rig, obstacle: str) -> None:
    await rig.bring(b"a")
    setattr(rig.writer if obstacle in ("paused", "lost") else rig, obstacle, True)
    rig.relayed = FakeRelayed()
    await rig.bring(b"b")
    assert rig.handed_over == []


async def test_a_lost_connection_is_taken_back_at_once_and_nothing_is_written(rig: Rig) -> None:
    rig.relayed = FakeRelayed(unsent=b"1\r\nx\r\n")
    await rig.bring(b"a")
    await rig.bring()
    rig.writer.lose()
    assert rig.num_taken_back == 1
    assert rig.sent == [b"head", b"a"]


async def test_a_comment_is_due_only_when_native_code_has_not_written_either() -> None:
    rig = Rig(keep_alive_s=0.02)
    await turns()
    rig.relayed = FakeRelayed()
    rig.relayed.back = rig.relayed.back._replace(last_write_s=time.monotonic() + 0.1)
    await rig.bring(b"a")
    await rig.bring()
    while rig.sent[2:] != [b": keep-alive\n\n"]:
        assert time.monotonic() > rig.relayed.back.last_write_s or rig.num_taken_back == 0
        await asyncio.sleep(0)
    assert time.monotonic() > rig.relayed.back.last_write_s
    rig.task.cancel()


async def test_a_cancelled_stream_closes_its_source_and_writes_no_more(rig: Rig) -> None:
    await rig.bring(b"a")
    rig.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rig.task
    assert (rig.sent, rig.num_closed) == ([b"head", b"a"], 1)
