"""What a peer can do to the engine's socket below the messages: it goes on, and for its frontends too."""

from __future__ import annotations

import contextlib
import random
import resource
import signal
import socket
from collections.abc import Callable, Iterator

import msgspec
import psutil
import pytest

from splitserve.engine_core.ipc.codec import encode
from splitserve.engine_core.ipc.messages import Abort
from splitserve.engine_core.process.file_limit import raise_file_limit
from splitserve.engine_core.server.busy_loop import MAX_CONNECTIONS
from tests.engine_core.server.harness import Engine, held_port, running_engine
from tests.engine_core.server.raw_peer import (
    GREETING,
    PING,
    command,
    connect,
    frame,
    has_ended,
    reset,
    shake_hands,
)

# More than libzmq used to queue for one peer.
NUM_MESSAGES = 600
MIB = 2**20


@contextlib.contextmanager
def engine_on(kind: str, *flags: str) -> Iterator[Engine]:
    if kind == "ipc":
        with running_engine(*flags) as engine:
            yield engine
        return
    with held_port() as port:
        address = f"tcp://127.0.0.1:{port}"
        with running_engine("--listen", address, *flags) as engine:
            engine.address = address
            yield engine


@pytest.fixture(params=["ipc", "tcp"])
def attacked(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine that is stopped, so that all that is sent arrives at once when it goes on."""
    with engine_on(request.param) as engine:
        engine.joined().close()
        yield engine
        engine.joined().ping()
        engine.signal(signal.SIGTERM)
        assert engine.exit_code() == 0
        assert "Traceback" not in engine.log()


class Peers:
    """Raw connections, closed in the end."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *args: object) -> None:
        self._stack.close()

    def connect(self, engine: Engine) -> socket.socket:
        return self._stack.enter_context(contextlib.closing(connect(engine.address)))

    def join(self, engine: Engine, identity: bytes) -> socket.socket:
        peer = self.connect(engine)
        shake_hands(peer, identity)
        return peer


@pytest.fixture
def peers() -> Iterator[Peers]:
    with Peers() as peers:
        yield peers


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """As many descriptors for this process as the system allows."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if raise_file_limit() < 4000:
        pytest.skip("the system does not allow 4000 descriptors")
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def standing_still(engine: Engine) -> Iterator[None]:
    process = psutil.Process(engine.popen.pid)
    process.suspend()
    try:
        yield
    finally:
        process.resume()


@pytest.mark.parametrize("leave", [socket.socket.close, reset])
def test_pings_behind_a_long_queue_of_a_peer_that_left(
    attacked: Engine, peers: Peers, leave: Callable[[socket.socket], None]
) -> None:
    speakers = [peers.join(attacked, b"peer-%d" % number) for number in range(8)]
    with standing_still(attacked):
        for peer in speakers:
            # All of it is read at once, so the pings are in libzmq's buffer when the end is noticed.
            peer.sendall(frame(b"x") * 2000 + PING * 100)
            leave(peer)


def test_two_connections_of_one_identity(attacked: Engine, peers: Peers) -> None:
    speakers = [peers.join(attacked, b"same") for _ in range(4)]
    with standing_still(attacked):
        for peer in speakers:
            peer.sendall((PING + frame(b"x")) * NUM_MESSAGES + PING)
            reset(peer)


def test_a_frontend_that_sends_much_and_leaves(attacked: Engine) -> None:
    frontend = attacked.joined()
    for _ in range(100):
        frontend.send_frames(bytes(2 * MIB))
    frontend.close()


def test_half_closed_connections_are_ends(attacked: Engine, peers: Peers) -> None:
    peer = peers.join(attacked, b"half")
    peer.sendall(frame(b"x") * NUM_MESSAGES)
    peer.shutdown(socket.SHUT_WR)
    assert has_ended(peer)


def test_a_message_longer_than_any_request_ends_its_connection(attacked: Engine, peers: Peers) -> None:
    peer = peers.join(attacked, b"long")
    peer.sendall(b"\x02" + (2**40).to_bytes(8, "big"))
    assert has_ended(peer)


def test_peers_that_never_finish_their_handshake(attacked: Engine, peers: Peers) -> None:
    for length in range(20):
        peers.connect(attacked).sendall(GREETING[:length])
    attacked.joined().ping()


@pytest.mark.parametrize("seed", range(3))
def test_whatever_frames_and_commands_come(attacked: Engine, seed: int) -> None:
    rng = random.Random(seed)
    words = (b"", b"PING", b"PONG", b"SUBSCRIBE", b"CANCEL", b"ERROR", b"READY", b"XX")
    identities = (b"same", b"", b"\0abcd", bytes(255))
    for _ in range(60):
        with contextlib.closing(connect(attacked.address)) as peer, contextlib.suppress(OSError):
            if rng.random() < 0.1:
                peer.sendall(rng.randbytes(200))
                continue
            shake_hands(peer, rng.choice(identities))
            parts = [
                rng.choice(
                    (
                        PING,
                        command(rng.choice(words), rng.randbytes(rng.randrange(20))),
                        frame(rng.randbytes(3), flags=4),
                        frame(rng.randbytes(300), more=True) + frame(b"x"),
                        frame(b"x"),
                    )
                )
                for _ in range(rng.randrange(400))
            ]
            peer.sendall(b"".join(parts))
            if rng.random() < 0.5:
                reset(peer)


def test_a_flood_ends_with_its_connection(peers: Peers) -> None:
    with engine_on("ipc") as engine:
        neighbour = engine.joined()
        peer = peers.join(engine, b"flood")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                peer.sendall(frame(b"x") * 10_000)
        neighbour.ping()


def test_a_message_without_an_end_ends_its_connection(peers: Peers) -> None:
    with engine_on("tcp") as engine:
        neighbour = engine.joined()
        peer = peers.join(engine, b"endless")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(128):
                peer.sendall(frame(bytes(MIB), more=True))
        assert has_ended(peer)
        neighbour.ping()
        assert "message without an end" in engine.log()


def test_an_abort_names_no_more_than_a_frontend_can_have_open() -> None:
    with engine_on("ipc") as engine:
        client = engine.joined()
        before = client.ping().stats.protocol_errors
        client.send_frames(encode(Abort([1] * 16_384)))
        assert client.ping().stats.protocol_errors == before
        client.send_frames(b"\x92\x02" + msgspec.msgpack.encode([1] * 16_385))
        assert client.ping().stats.protocol_errors == before + 1


@pytest.mark.usefixtures("many_descriptors")
def test_connections_beyond_the_bound_are_refused_and_frontends_stay(peers: Peers) -> None:
    with engine_on("ipc") as engine:
        frontend = engine.joined()
        silent = [peers.connect(engine) for _ in range(700)]
        # Those there is no room for, the oldest first.
        for peer in silent[: 700 - MAX_CONNECTIONS]:
            assert has_ended(peer)
        frontend.ping()
        engine.joined().ping()
        assert "too many connections" in engine.log()


@pytest.mark.usefixtures("many_descriptors")
def test_a_flood_of_connections_leaves_descriptors_where_there_are_few(peers: Peers) -> None:
    with engine_on("ipc") as engine:
        frontend = engine.joined()
        process = psutil.Process(engine.popen.pid)
        process.rlimit(resource.RLIMIT_NOFILE, (2048, 2048))
        for _ in range(3000):
            peers.connect(engine)
        frontend.ping()


def test_the_engine_may_open_as_many_descriptors_as_the_system_allows() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with engine_on("ipc") as engine:
        engine.joined()
        process = psutil.Process(engine.popen.pid)
        assert process.rlimit(resource.RLIMIT_NOFILE) == (hard, hard)
