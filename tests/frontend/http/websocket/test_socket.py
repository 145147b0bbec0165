"""A socket's bookkeeping: what it holds of the process's budget, and which message is timed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from splitserve.frontend.http.body_budget import BodyBudget
from splitserve.frontend.http.connection.takeover import TakenConnection
from splitserve.frontend.http.websocket.socket import MAX_PINGS, Socket


class Wire(asyncio.Transport):
    """A connection whose other side is a client's protocol."""

    def __init__(self) -> None:
        super().__init__()
        self.client = ClientProtocol(parse_uri("ws://x/"), state=State.OPEN)
        self.closed = False

    def write(self, data: Any) -> None:
        self.client.receive_data(bytes(data))

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def sent(self) -> bytes:
        """What the client has sent since the last call."""
        return b"".join(self.client.data_to_send())

    def received(self) -> list[tuple[Opcode, bytes]]:
        """The frames that the client has got since the last call."""
        frames = [each for each in self.client.events_received() if isinstance(each, Frame)]
        return [(each.opcode, bytes(each.data)) for each in frames]


class Bench:
    """A socket, its wire and the budget that it shares with nobody."""

    def __init__(self, max_bytes: int = 1000) -> None:
        self.budget = BodyBudget(max_bytes)
        self.wire = Wire()
        self.socket = Socket(ServerProtocol(state=State.OPEN), self.budget, "here", 3600.0)
        self.connection = TakenConnection(self.wire, self.socket, paused=False)
        self.socket.open(self.connection, b"")

    def message(self, text: bytes) -> bytes:
        self.wire.client.send_text(text)
        return self.wire.sent()

    def ping(self) -> bytes:
        self.wire.client.send_ping(b"x")
        return self.wire.sent()

    @property
    def is_timed(self) -> bool:
        """Whether something has to be complete in time."""
        return self.socket._timer is not None


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_a_message_holds_its_bytes_until_it_is_taken(bench: Bench) -> None:
    data = bench.message(b"x" * 100)
    bench.socket.on_data(data[:50])
    assert (bench.budget.num_bytes, bench.is_timed) == (50, True)
    bench.socket.on_data(data[50:])
    assert (bench.budget.num_bytes, bench.is_timed) == (len(data), False)
    assert await bench.socket.next_message() == b"x" * 100
    assert bench.budget.num_bytes == 0


async def test_pings_hold_nothing_even_if_they_come_in_pieces(bench: Bench) -> None:
    data = bench.ping()
    for piece in (data[:3], data[3:]):
        bench.socket.on_data(piece)
    assert bench.wire.received() == [(Opcode.PONG, b"x")]
    assert (bench.budget.num_bytes, bench.is_timed) == (0, False)


async def test_the_bytes_of_a_message_that_is_still_coming_stay_held(bench: Bench) -> None:
    first, second = bench.message(b"1"), bench.message(b"x" * 200)
    bench.socket.on_data(first)
    bench.socket.on_data(second[:100])
    assert await bench.socket.next_message() == b"1"
    assert bench.budget.num_bytes >= 100


async def test_a_message_that_the_budget_has_no_room_for_closes_the_socket() -> None:
    bench = Bench(max_bytes=100)
    bench.socket.on_data(bench.message(b"x" * 200)[:150])
    ((opcode, data),) = bench.wire.received()
    assert (opcode, int.from_bytes(data[:2], "big")) == (Opcode.CLOSE, CloseCode.TRY_AGAIN_LATER)
    assert bench.socket.lost
    assert bench.wire.closed


async def test_pongs_that_nobody_reads_are_bounded(bench: Bench) -> None:
    bench.connection.set_paused(True)
    for _ in range(MAX_PINGS):
        bench.socket.on_data(bench.ping())
    assert not bench.socket.lost
    bench.socket.on_data(bench.ping())
    assert bench.socket.lost
    assert bench.wire.closed


MASKED = b"\x81\x82abcd\x00\x00"
SCRAPS = [
    MASKED,
    b"\x01\x82abcd\x00\x00",
    b"\x80\x80abcd",
    b"\x89\x80abcd",
    b"\x88\x82abcd\x62\x8a",
    b"\x82\x80abcd",
]


@given(pieces=st.lists(st.one_of(st.sampled_from(SCRAPS), st.binary(max_size=20)), max_size=12))
def test_whatever_comes_is_taken_or_closes_the_socket(pieces: list[bytes]) -> None:
    async def run() -> None:
        bench = Bench()
        for piece in pieces:
            bench.socket.on_data(piece)
        assert bench.socket.lost == bench.wire.closed
        await bench.socket.close(CloseCode.NORMAL_CLOSURE, 0.0)
        assert (bench.budget.num_bytes, bench.is_timed) == (0, False)

    asyncio.run(run())
