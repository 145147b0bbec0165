"""The publisher's sockets, against subscribers that behave and others that do not."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator

import pytest
import zmq

from splitserve.engine_core.clock import SystemClock
from splitserve.engine_core.config import EngineConfig, SchedulerConfig
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.curve import KeyGuard, create_keys, load_client_keys, load_server_keys
from splitserve.engine_core.ipc.peers import PeerFaults
from splitserve.engine_core.kv_events.publisher import REPLAY_LIMITS, KVEventPublisher
from splitserve.engine_core.kv_events.recorder import KVEventRecorder

DEADLINE_MS = 10_000
END = b"\xff" * 8


class Publishing:
    """A publisher in a folder of its own, driven by hand, and its clients."""

    def __init__(self, folder: str, context: zmq.Context, **settings: object) -> None:
        self.context = context
        self.config = EngineConfig(
            **{  # type: ignore[arg-type]
                "model": "m",
                "kv_events_address": f"ipc://{folder}/kv/events.sock",
                "kv_events_replay_address": f"ipc://{folder}/kv/replay.sock",
                **settings,
            }
        )
        self.config.validate()
        self.faults = PeerFaults()
        self.publisher = KVEventPublisher(context, self.config, None, SystemClock(), self.faults)
        self.recorder: KVEventRecorder = self.publisher.begin(SchedulerConfig())
        self._clients: list[zmq.Socket] = []

    def close(self) -> None:
        self.publisher.close()
        for client in self._clients:
            client.close(linger=0)

    def publish(self, count: int = 1) -> None:
        for _ in range(count):
            self.recorder.cleared()
            self.publisher.run(())

    def run_until(self, is_done: Callable[[], bool]) -> None:
        """Turn as the busy loop does: wait for what is due or comes in, then run."""
        poller = zmq.Poller()
        for source in self.publisher.sources:
            poller.register(source, zmq.POLLIN)
        for _ in range(DEADLINE_MS):
            self.publisher.run(dict(poller.poll(1)))
            if is_done():
                return
        raise AssertionError("it never came true")

    def connect(self, kind: int, address: str) -> zmq.Socket:
        client = self.context.socket(kind)
        client.connect(address)
        self._clients.append(client)
        return client

    def ask(self, *frames: bytes, kind: int = zmq.DEALER) -> zmq.Socket:
        client = self.connect(kind, self.config.kv_events_replay_address)
        client.send_multipart(frames)
        return client

    def answers(self, client: zmq.Socket) -> list[bytes]:
        """The numbers a peer gets, to the end mark."""
        numbers: list[bytes] = []

        def has_ended() -> bool:
            while client.poll(0):
                empty, number, payload = client.recv_multipart()
                assert empty == b""
                assert bool(payload) == (number != END)
                numbers.append(number)
            return END in numbers

        self.run_until(has_ended)
        return numbers


def packed(number: int) -> bytes:
    return number.to_bytes(8, "big")


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="kv-") as path:
        yield path


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    with zmq.Context() as context:
        yield context
        context.destroy(linger=0)


@pytest.fixture
def publishing(folder: str, context: zmq.Context) -> Iterator[Publishing]:
    publishing = Publishing(folder, context)
    yield publishing
    publishing.close()


def test_subscribers_get_topic_number_and_payload(folder: str, context: zmq.Context) -> None:
    publishing = Publishing(folder, context, kv_events_topic="kv@pod@model")
    subscriber = publishing.connect(zmq.SUB, publishing.config.kv_events_address)
    subscriber.subscribe("kv@pod")
    other = publishing.connect(zmq.SUB, publishing.config.kv_events_address)
    other.subscribe("elsewhere")
    publishing.publish()
    # A subscription takes a moment to arrive; what is published before is not seen.
    for _ in range(DEADLINE_MS // 10):
        publishing.publish()
        if subscriber.poll(10):
            break
    topic, number, payload = subscriber.recv_multipart()
    assert topic == b"kv@pod@model"
    assert (len(number), bool(payload)) == (8, True)
    publishing.publish()
    assert subscriber.poll(DEADLINE_MS)
    assert int.from_bytes(subscriber.recv_multipart()[1], "big") == int.from_bytes(number, "big") + 1
    assert not other.poll(0)
    publishing.close()


def test_nothing_new_is_no_batch(publishing: Publishing) -> None:
    publishing.publish(2)
    for _ in range(5):
        publishing.publisher.run(())
    assert publishing.answers(publishing.ask(b"", packed(0))) == [packed(0), packed(1), END]


def test_missed_batches_are_sent_again(publishing: Publishing) -> None:
    publishing.publish(40)
    client = publishing.ask(b"", packed(30))
    assert publishing.answers(client) == [*map(packed, range(30, 40)), END]
    client.send_multipart([b"", packed(39)])
    assert publishing.answers(client) == [packed(39), END]


def test_only_the_last_batches_are_kept(folder: str, context: zmq.Context) -> None:
    publishing = Publishing(folder, context, kv_events_buffer_steps=3)
    publishing.publish(10)
    assert publishing.answers(publishing.ask(b"", packed(0))) == [packed(7), packed(8), packed(9), END]
    publishing.close()


def test_a_req_socket_is_understood(publishing: Publishing) -> None:
    publishing.publish()
    client = publishing.ask(packed(0), kind=zmq.REQ)
    publishing.run_until(lambda: bool(client.poll(0)))
    assert client.recv_multipart()[0] == packed(0)


@pytest.mark.parametrize(
    "frames",
    [[b""], [packed(0)], [b"", b""], [b"", b"1234567"], [b"", b"123456789"], [b"x", packed(0)], [b""] * 40],
)
def test_a_request_that_is_none_is_counted_and_harms_nobody(
    publishing: Publishing, frames: list[bytes]
) -> None:
    publishing.publish()
    publishing.ask(*frames)
    publishing.run_until(lambda: publishing.faults.num_protocol_errors == 1)
    assert publishing.answers(publishing.ask(b"", packed(0))) == [packed(0), END]


def test_an_oversized_request_ends_its_connection_only(publishing: Publishing) -> None:
    publishing.publish()
    large = publishing.connect(zmq.DEALER, publishing.config.kv_events_replay_address)
    with large.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
        large.send_multipart([b"", bytes(REPLAY_LIMITS.max_message_bytes + 1)])
        assert monitor.poll(DEADLINE_MS)
        large.disable_monitor()
    assert publishing.answers(publishing.ask(b"", packed(0))) == [packed(0), END]
    assert publishing.faults.num_protocol_errors == 0
    assert not large.poll(0)


def test_who_asks_and_does_not_read_does_not_block_others(publishing: Publishing) -> None:
    # Far more than socket buffers and queues hold.
    for _ in range(4000):
        publishing.recorder.removed([bytes(32)] * 1000)
        publishing.publisher.run(())
    lazy = publishing.ask(b"", packed(0))
    publishing.run_until(lambda: publishing.publisher.next_due_s() < float("inf"))
    # Enough to send it everything, if it read.
    publishing.publish(400)
    assert publishing.answers(publishing.ask(b"", packed(4399))) == [packed(4399), END]
    assert publishing.publisher.next_due_s() < float("inf"), "the lazy one counts as served"
    assert lazy.poll(DEADLINE_MS)


def test_a_subscriber_that_does_not_read_makes_nobody_wait(publishing: Publishing) -> None:
    subscriber = publishing.connect(zmq.SUB, publishing.config.kv_events_address)
    subscriber.setsockopt(zmq.RCVHWM, 1)
    subscriber.subscribe("")
    for _ in range(DEADLINE_MS // 10):
        publishing.publish()
        if subscriber.poll(10):
            break
    for _ in range(3000):
        publishing.recorder.removed([bytes(32)] * 1000)
        publishing.publisher.run(())
    numbers = [int.from_bytes(subscriber.recv_multipart()[1], "big")]
    while subscriber.poll(100):
        numbers.append(int.from_bytes(subscriber.recv_multipart()[1], "big"))
    assert len(numbers) < 3000, "nothing was dropped, so the test shows nothing"
    assert numbers == sorted(numbers)


def test_closing_leaves_no_file(folder: str, publishing: Publishing) -> None:
    assert os.stat(f"{folder}/kv").st_mode & 0o777 == 0o700
    publishing.publisher.close()
    assert os.listdir(folder) == []


def test_an_address_in_use_leaves_no_file(folder: str, context: zmq.Context) -> None:
    with pytest.raises(ConfigError, match="already listens"):
        Publishing(folder, context, kv_events_replay_address=f"ipc://{folder}/kv/events.sock")
    assert os.listdir(folder) == []


def test_beyond_this_machine_only_known_keys_hear_anything(folder: str, context: zmq.Context) -> None:
    for name in ("k", "stranger"):
        create_keys(f"{folder}/{name}")
    server = load_server_keys(f"{folder}/k")
    guard = KeyGuard(context, server.accepted)
    config = EngineConfig(
        model="m", kv_events_address="tcp://127.0.0.1:0", kv_events_replay_address="tcp://127.0.0.1:0"
    )
    publisher = KVEventPublisher(context, config, server, SystemClock(), PeerFaults())
    recorder = publisher.begin(SchedulerConfig())
    publisher.run(())
    replay = publisher.sources[2]
    peers = {}
    for name in ("k", "stranger"):
        keys = load_client_keys(f"{folder}/{name}")
        peers[name] = context.socket(zmq.DEALER)
        peers[name].curve_publickey, peers[name].curve_secretkey = keys.public, keys.secret
        peers[name].curve_serverkey = server.public
        peers[name].connect(replay.getsockopt_string(zmq.LAST_ENDPOINT))
        peers[name].send_multipart([b"", packed(0)])
    poller = zmq.Poller()
    for source in (guard.socket, replay, peers["k"]):
        poller.register(source, zmq.POLLIN)
    heard: list[bytes] = []
    while not (heard and guard.num_refused):
        ready = dict(poller.poll(DEADLINE_MS))
        assert ready, "nobody came"
        guard.handle()
        publisher.run(ready)
        if peers["k"] in ready:
            heard.append(peers["k"].recv_multipart()[1])
    assert heard[0] == packed(0)
    assert not peers["stranger"].poll(50)
    assert recorder.take() == []
    for client in peers.values():
        client.close(linger=0)
    publisher.close()
    guard.close()
