"""Connections of a shared listening socket: who takes them, and that none is lost."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Iterator

import pytest

from splitserve.engine_core.ipc.connection_counts import NOT_SERVING, ConnectionCounts
from splitserve.frontend.http.connection.acceptor import Acceptor


class Frontends:
    """Some acceptors of one listening socket in this event loop, and clients."""

    def __init__(self, size: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.counts = ConnectionCounts.create(size)
        self.acceptors: dict[int, Acceptor] = {}
        self.listeners: list[socket.socket] = []
        self.clients: list[socket.socket] = []
        self.served: list[int] = []
        self._changed = asyncio.Event()

    def start(self, *numbers: int, tls: ssl.SSLContext | None = None) -> None:
        for number in numbers:
            # A loop watches a descriptor once; in a launch each process has its own.
            own = self.listener if not self.acceptors else self.listener.dup()
            self.listeners.append(own)
            self.acceptors[number] = Acceptor(own, self.counts, number, self._protocol(number), tls)

    def _protocol(self, number: int) -> Callable[[], asyncio.Protocol]:
        frontends = self

        class Protocol(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                frontends.served.append(number)
                frontends._changed.set()

            def connection_lost(self, exc: Exception | None) -> None:
                frontends.acceptors[number].on_closed()
                frontends._changed.set()

        return Protocol

    def connect(self, num: int) -> None:
        for _ in range(num):
            self.clients.append(socket.create_connection(self.listener.getsockname()))

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def all_served(self) -> None:
        await self.until(lambda: len(self.served) == len(self.clients))

    def close(self) -> None:
        for acceptor in self.acceptors.values():
            acceptor.close()
        for sock in (*self.clients, *self.listeners, self.listener):
            sock.close()


@pytest.fixture
async def make_frontends() -> AsyncGenerator[Callable[[int], Frontends], None]:
    made: list[Frontends] = []

    def make(size: int) -> Frontends:
        made.append(Frontends(size))
        return made[-1]

    yield make
    for frontends in made:
        frontends.close()


Make = Callable[[int], Frontends]


async def test_a_burst_is_spread_evenly(make_frontends: Make) -> None:
    frontends = make_frontends(4)
    frontends.start(1, 2, 3, 4)
    frontends.connect(24)
    await frontends.all_served()
    counts = [frontends.served.count(number) for number in (1, 2, 3, 4)]
    assert max(counts) - min(counts) <= 2, counts
    assert [frontends.counts[number] for number in (1, 2, 3, 4)] == counts


async def test_one_that_comes_later_is_served_first(make_frontends: Make) -> None:
    frontends = make_frontends(2)
    frontends.start(1)
    frontends.connect(10)
    await frontends.all_served()
    frontends.start(2)
    frontends.connect(8)
    await frontends.all_served()
    assert frontends.served[10:] == [2] * 8


async def test_one_that_hangs_with_none_open_keeps_nobody_waiting_for_long(make_frontends: Make) -> None:
    frontends = make_frontends(4)
    frontends.counts[4] = 0
    frontends.start(1, 2, 3)
    frontends.connect(24)
    await frontends.all_served()
    counts = [frontends.served.count(number) for number in (1, 2, 3)]
    assert max(counts) - min(counts) <= 2, counts
    assert any(acceptor._passed == {4: 0} for acceptor in frontends.acceptors.values())


async def test_one_that_hung_is_waited_for_again_once_it_moves(make_frontends: Make) -> None:
    frontends = make_frontends(2)
    frontends.counts[2] = 0
    frontends.start(1)
    frontends.connect(6)
    await frontends.all_served()
    frontends.counts[2] = 1
    assert frontends.acceptors[1]._emptier() == [2]


async def test_one_that_does_not_serve_is_not_waited_for(make_frontends: Make) -> None:
    frontends = make_frontends(2)
    frontends.start(1)
    frontends.connect(6)
    await frontends.all_served()
    assert frontends.counts[2] == NOT_SERVING
    assert frontends.acceptors[1]._passed == {}


async def test_where_many_are_open_a_few_more_are_nothing_to_wait_for(make_frontends: Make) -> None:
    frontends = make_frontends(2)
    frontends.start(1)
    frontends.counts[2], frontends.counts[1] = 800, 901
    assert frontends.acceptors[1]._emptier() == []
    frontends.counts[1] = 902
    assert frontends.acceptors[1]._emptier() == [2]


async def test_a_connection_that_ends_is_counted_off(make_frontends: Make) -> None:
    frontends = make_frontends(2)
    frontends.start(1)
    frontends.connect(3)
    await frontends.all_served()
    assert frontends.counts[1] == 3
    frontends.clients.pop().close()
    await frontends.until(lambda: frontends.counts[1] < 3)
    assert frontends.counts[1] == 2


async def test_a_handshake_that_fails_is_counted_off(make_frontends: Make) -> None:
    frontends = make_frontends(2)
    frontends.start(1, tls=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    frontends.connect(1)
    acceptor = frontends.acceptors[1]
    while not acceptor._opening:
        await asyncio.sleep(0)
    assert frontends.counts[1] == 1, "it counts while it lasts"
    frontends.clients[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    await asyncio.wait(acceptor._opening)
    assert frontends.counts[1] == 0
    assert frontends.served == []


async def test_after_its_end_it_takes_nothing_and_is_not_waited_for(make_frontends: Make) -> None:
    frontends = make_frontends(2)
    frontends.start(1, 2)
    frontends.acceptors[1].close()
    frontends.connect(5)
    await frontends.all_served()
    assert frontends.served == [2] * 5
    assert frontends.counts[1] == NOT_SERVING
    frontends.acceptors[1].on_closed()
    assert frontends.counts[1] == NOT_SERVING


class Exhausted(socket.socket):
    """A listening socket that has no descriptor to give at first."""

    refusals = iter([errno.EMFILE])

    def accept(self) -> tuple[socket.socket, object]:
        for number in self.refusals:
            raise OSError(number, "too many open files")
        return super().accept()


@pytest.fixture
def exhausted() -> Iterator[Exhausted]:
    with Exhausted() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener


async def test_a_connection_that_finds_no_descriptor_is_taken_later(
    make_frontends: Make, exhausted: Exhausted
) -> None:
    frontends = make_frontends(2)
    frontends.listener.close()
    frontends.listener = exhausted
    frontends.start(1)
    frontends.connect(1)
    await frontends.all_served()
    assert next(exhausted.refusals, None) is None
