"""Connections of a bound socket that are ended by us, on real sockets."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

import pytest
import zmq

from splitserve.engine_core.ipc.connections import STUCK_S
from splitserve.engine_core.ipc.sockets import SocketLimits, affordable_connections
from splitserve.engine_core.ipc.transport import SEND_HWM, BoundRouter, Received
from tests.engine_core.server.raw_peer import PING, connect, frame, has_ended, joined

DEADLINE_MS = 20_000
LIMITS = SocketLimits(1000, SEND_HWM, max_connections=4, patience_s=30.0)


class Bound:
    """A bound router, turned by hand."""

    def __init__(self, router: BoundRouter) -> None:
        self.router = router
        self.now_s = 0.0

    def receive(self) -> Received:
        """Wait for one message."""
        assert self.router.socket.poll(DEADLINE_MS)
        self.look()
        (message,) = self.router.receive(1)
        return message

    def look(self) -> bool:
        return self.router.look_after(self.now_s)

    def await_open(self, count: int) -> None:
        """Wait until so many connections are open, or told to end."""
        while len(self.router.connections.table) != count:
            assert self.router.connections.monitor.poll(DEADLINE_MS)
            self.look()


@pytest.fixture(params=["ipc", "tcp"])
def bound(request: pytest.FixtureRequest) -> Iterator[Bound]:
    with tempfile.TemporaryDirectory(prefix="cw-") as folder, zmq.Context() as context:
        address = f"ipc://{folder}/e.sock" if request.param == "ipc" else "tcp://127.0.0.1:0"
        router = BoundRouter(context, address, limits=LIMITS)
        yield Bound(router)
        router.close()


def test_a_connection_is_ended_for_its_peer_to_see(bound: Bound) -> None:
    with contextlib.closing(joined(bound.router.address, b"one")) as peer:
        peer.sendall(frame(b"x"))
        bound.router.connections.end(bound.receive().descriptor, 0.0)
        assert has_ended(peer)
        bound.await_open(0)


def test_more_connections_than_places_are_ended(bound: Bound) -> None:
    with contextlib.ExitStack() as peers:
        connected = [peers.enter_context(contextlib.closing(connect(bound.router.address))) for _ in range(6)]
        while bound.router.connections.table.num_refused < 2:
            assert bound.router.connections.monitor.poll(DEADLINE_MS)
            bound.look()
        assert has_ended(connected[0])
        assert has_ended(connected[1])
        bound.await_open(4)


def test_a_connection_is_read_to_its_end_before_anybody_takes_what_it_brought(bound: Bound) -> None:
    # libzmq 4.3.5 aborts at a ping behind a full queue whose peer has left.
    with contextlib.closing(joined(bound.router.address, b"one")) as peer:
        bound.await_open(1)
        peer.sendall(frame(b"x") * 2000 + PING * 100)
    bound.await_open(0)
    assert [message.frame for message in bound.router.receive()] == [b"x"] * 2000


def test_a_peer_of_an_old_protocol_is_told_from_others(bound: Bound) -> None:
    with contextlib.closing(connect(bound.router.address)) as peer:
        # ZMTP 1.0: a frame's length and flags, the first one an identity.
        peer.sendall(b"\x01\x00" + b"\x02\x00x")
        assert bound.receive().descriptor == -1


def test_a_socket_whose_connections_do_not_end_is_bound_anew(bound: Bound) -> None:
    router, address = bound.router, bound.router.address
    with contextlib.ExitStack() as peers:

        def speak(identity: bytes) -> Received:
            peer = peers.enter_context(contextlib.closing(joined(address, identity)))
            peer.sendall(frame(b"x"))
            return bound.receive()

        # libzmq reads a connection no more whose identity was taken over and that goes on to send.
        for number in range(2):
            lost = peers.enter_context(contextlib.closing(joined(address, b"%d" % number)))
            lost.sendall(frame(b"x"))
            first = bound.receive()
            speak(b"%d" % number)
            lost.sendall(frame(b"y") * 3)
            router.connections.end(first.descriptor, bound.now_s)
        bound.now_s = STUCK_S
        if not router.connections.table.is_stuck(bound.now_s):
            # It may have seen the end before what was sent; then there is nothing to get rid of.
            return
        bound.look()
        bound.await_open(0)
        assert router.address == address
        assert speak(b"new").identity == b"new"


def test_connections_are_no_more_than_a_fifth_of_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda kind: (256, 256))
    assert affordable_connections(512) == 38
    assert affordable_connections(10) == 10
    monkeypatch.setattr("resource.getrlimit", lambda kind: (10, 10))
    assert affordable_connections(512) == 1
