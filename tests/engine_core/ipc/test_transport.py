"""Bound routers and connected dealers: limits, errors and files, on real sockets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from splitserve.engine_core.errors import ConfigError, ProtocolError
from splitserve.engine_core.ipc.curve import KeyGuard, create_keys, load_client_keys, load_server_keys
from splitserve.engine_core.ipc.sockets import SocketLimits
from splitserve.engine_core.ipc.transport import SEND_HWM, BoundRouter, SendResult, connect_engine

DEADLINE_MS = 10_000


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="tr-") as path:
        yield path


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    with zmq.Context() as context:
        yield context
        context.destroy(linger=0)


def receive_one(router: BoundRouter) -> tuple[bytes, bytes | memoryview | ProtocolError]:
    assert router.socket.poll(DEADLINE_MS)
    (message,) = router.receive(1)
    return message.identity, message.frame


def await_greeted(router: BoundRouter) -> None:
    """Take one message and note whose connection it came over."""
    assert router.socket.poll(DEADLINE_MS)
    router.look_after(0.0)
    (message,) = router.receive(1)
    router.connections.greet(message.descriptor, message.identity, 0.0)


def until_ended(router: BoundRouter) -> None:
    """Wait until some connection has ended."""
    while not router.look_after(0.0):
        assert router.connections.monitor.poll(DEADLINE_MS), "the end of a connection is seen"


def test_a_round_trip_over_ipc_leaves_no_file(folder: str, context: zmq.Context) -> None:
    address = f"ipc://{folder}/run/e.sock"
    router = BoundRouter(context, address)
    assert router.address == address
    assert os.stat(f"{folder}/run").st_mode & 0o777 == 0o700
    assert os.stat(f"{folder}/run/e.sock").st_mode & 0o777 == 0o600
    dealer = connect_engine(context, address, b"one")
    dealer.send(b"hello")
    assert receive_one(router) == (b"one", b"hello")
    assert router.send(b"one", b"world") is SendResult.SENT
    assert dealer.poll(DEADLINE_MS)
    assert dealer.recv_multipart() == [b"world"]
    dealer.close()
    router.close()
    router.close()
    assert os.listdir(folder) == []


def test_a_directory_that_was_there_stays(folder: str, context: zmq.Context) -> None:
    BoundRouter(context, f"ipc://{folder}/e.sock").close()
    assert os.listdir(folder) == []
    assert os.path.isdir(folder)


def test_a_second_router_does_not_steal_the_address(folder: str, context: zmq.Context) -> None:
    address = f"ipc://{folder}/e.sock"
    first = BoundRouter(context, address)
    with pytest.raises(ConfigError, match="already listens"):
        BoundRouter(context, address)
    dealer = connect_engine(context, address, b"one")
    dealer.send(b"still here")
    assert receive_one(first) == (b"one", b"still here")
    dealer.close()
    first.close()


def test_a_router_can_be_bound_anew_at_once_however_often(folder: str, context: zmq.Context) -> None:
    """libzmq gives up what belonged to a closed socket some time later."""
    for number in range(300):
        router = BoundRouter(context, f"ipc://{folder}/e.sock")
        assert router.address, number
        router.close()


def test_a_port_in_use_is_named(context: zmq.Context) -> None:
    first = BoundRouter(context, "tcp://127.0.0.1:0")
    assert first.address.startswith("tcp://127.0.0.1:")
    with pytest.raises(ConfigError, match="cannot listen on tcp://127"):
        BoundRouter(context, first.address)
    first.close()


def test_a_peer_that_never_was_or_is_gone_is_told_apart(folder: str, context: zmq.Context) -> None:
    router = BoundRouter(context, f"ipc://{folder}/e.sock")
    assert router.send(b"nobody", b"x") is SendResult.GONE
    dealer = connect_engine(context, router.address, b"one")
    dealer.send(b"hello")
    receive_one(router)
    dealer.close()
    until_ended(router)
    for _ in range(1000):
        if router.send(b"one", b"x") is SendResult.GONE:
            break
        router.socket.poll(5)
    else:
        pytest.fail("the peer stayed")
    router.close()


def test_a_peer_that_does_not_read_makes_sends_fail_not_block(folder: str, context: zmq.Context) -> None:
    router = BoundRouter(context, f"ipc://{folder}/e.sock")
    dealer = connect_engine(context, router.address, b"one")
    dealer.send(b"hello")
    receive_one(router)
    results = [router.send(b"one", bytes(65536)) for _ in range(5000)]
    assert results[0] is SendResult.SENT
    # Not always the last one: on a busy machine libzmq may just have moved some messages to the reader.
    assert SendResult.FULL in results
    dealer.close()
    router.close()


def test_a_newcomer_takes_an_identity_over_and_its_owner_ends(folder: str, context: zmq.Context) -> None:
    router = BoundRouter(context, f"ipc://{folder}/e.sock")
    owner = connect_engine(context, router.address, b"one")
    owner.send(b"mine")
    await_greeted(router)
    monitor = owner.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    newcomer = connect_engine(context, router.address, b"one")
    newcomer.send(b"mine now")
    await_greeted(router)
    assert monitor.poll(DEADLINE_MS), "its connection is ended"
    monitor.close()
    owner.disable_monitor()
    for socket in (owner, newcomer):
        socket.close()
    router.close()


def test_messages_of_several_frames_come_as_errors(folder: str, context: zmq.Context) -> None:
    router = BoundRouter(context, f"ipc://{folder}/e.sock")
    dealer = connect_engine(context, router.address, b"one")
    dealer.send_multipart([b"a", b"b"])
    identity, error = receive_one(router)
    assert identity == b"one"
    assert isinstance(error, ProtocolError)
    dealer.close()
    router.close()


def test_receive_stops_at_its_limit(folder: str, context: zmq.Context) -> None:
    router = BoundRouter(context, f"ipc://{folder}/e.sock")
    dealer = connect_engine(context, router.address, b"one")
    for number in range(10):
        dealer.send(b"%d" % number)
    dealer.send(b"last")
    seen: list[bytes | memoryview | ProtocolError] = []
    while b"last" not in seen:
        assert router.socket.poll(DEADLINE_MS)
        batch = [message.frame for message in router.receive(4)]
        assert len(batch) <= 4
        seen += batch
    assert seen == [*(b"%d" % number for number in range(10)), b"last"]
    dealer.close()
    router.close()


def test_an_oversized_message_ends_its_connection_only(folder: str, context: zmq.Context) -> None:
    router = BoundRouter(context, f"ipc://{folder}/e.sock", limits=SocketLimits(1000, SEND_HWM))
    dealer, other = (connect_engine(context, router.address, name) for name in (b"one", b"two"))
    other.send(b"hello")
    receive_one(router)
    dealer.send(bytes(1001))
    until_ended(router)
    other.send(bytes(1000))
    assert receive_one(router) == (b"two", bytes(1000))
    for socket in (dealer, other):
        socket.close(linger=0)
    router.close()


async def test_the_same_call_serves_asyncio(folder: str, context: zmq.Context) -> None:
    router = BoundRouter(context, f"ipc://{folder}/e.sock")
    asynchronous = zmq.asyncio.Context()
    dealer = connect_engine(asynchronous, router.address, b"one")
    await dealer.send(b"hello")
    assert receive_one(router) == (b"one", b"hello")
    router.send(b"one", b"world")
    assert await dealer.recv() == b"world"
    dealer.close()
    router.close()
    asynchronous.term()


@pytest.mark.parametrize("who", ["known", "unknown", "without keys", "of another engine"])
def test_over_tcp_only_known_keys_are_let_in(
    folder: str, context: zmq.Context, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("ours", "theirs"):
        create_keys(f"{folder}/{name}")
    server_keys = load_server_keys(f"{folder}/ours")
    guard = KeyGuard(context, server_keys.accepted)
    router = BoundRouter(context, "tcp://127.0.0.1:0", server_keys)
    client_keys = {
        "known": load_client_keys(f"{folder}/ours"),
        # Has the engine's public key, but a pair of its own.
        "unknown": load_client_keys(f"{folder}/theirs")._replace(server=server_keys.public),
        "without keys": None,
        "of another engine": load_client_keys(f"{folder}/ours")._replace(
            server=load_server_keys(f"{folder}/theirs").public
        ),
    }[who]
    with zmq.Context() as other:
        dealer = connect_engine(other, router.address, b"one", client_keys)
        dealer.send(b"hello")
        poller = zmq.Poller()
        for socket in (guard.socket, router.socket, router.connections.monitor):
            poller.register(socket, zmq.POLLIN)
        # libzmq asks the guard, then the connection brings something or ends.
        while router.socket not in (ready := dict(poller.poll(DEADLINE_MS))):
            assert ready, "neither a question nor an end"
            guard.handle()
            if router.look_after(0.0):
                break
        if who == "known":
            assert receive_one(router) == (b"one", b"hello")
        else:
            assert not router.socket.poll(50)
        assert guard.num_refused == (who == "unknown")
        assert ("connection refused" in caplog.text) == (who == "unknown")
        dealer.close(linger=0)
    guard.close()
    router.close()


def test_keys_are_private_files_and_never_overwritten(folder: str) -> None:
    directory = Path(folder) / "keys"
    paths = create_keys(str(directory))
    assert {str(path) for path in directory.iterdir()} == set(paths)
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    before = {path: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(ConfigError, match="already exists"):
        create_keys(str(directory))
    assert {path: path.read_bytes() for path in directory.iterdir()} == before


@pytest.mark.parametrize("name", ["engine.key_secret", "frontend.key"])
def test_a_missing_key_is_named(folder: str, name: str) -> None:
    create_keys(f"{folder}/k")
    os.unlink(f"{folder}/k/{name}")
    with pytest.raises(ConfigError, match=r"engine.key_secret|frontend"):
        load_server_keys(f"{folder}/k")


def test_a_secret_key_others_may_read_is_refused(folder: str) -> None:
    create_keys(f"{folder}/k")
    os.chmod(f"{folder}/k/engine.key_secret", 0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_server_keys(f"{folder}/k")


@pytest.mark.parametrize("text", ["", "garbage", 'public-key = "x"\nsecret-key = "x"', "\x00\xff" * 50])
def test_a_file_that_is_no_key_is_named(folder: str, text: str) -> None:
    create_keys(f"{folder}/k")
    Path(f"{folder}/k/engine.key_secret").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"engine\.key_secret"):
        load_server_keys(f"{folder}/k")
