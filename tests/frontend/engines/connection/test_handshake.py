"""An engine that refuses our key: told once, tried again, and served when the operator has mended it."""

from __future__ import annotations

import asyncio
import logging
import tempfile

import pytest
import zmq

from splitserve.engine_core.ipc.codec import encode
from splitserve.engine_core.ipc.curve import KeyGuard, create_keys, load_client_keys, load_server_keys
from splitserve.engine_core.ipc.messages import Hello
from splitserve.engine_core.ipc.transport import BoundRouter
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION
from splitserve.frontend.engines.connection.client import EngineClient
from splitserve.frontend.engines.connection.handshake import RETRY_S, HandshakeWatch
from splitserve.frontend.engines.connection.session import EngineSession

AUTH = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
HELLO = encode(Hello(PROTOCOL_VERSION, "f", "0"))


async def answer_until(guard: KeyGuard, num_refused: int) -> None:
    """Answer libzmq's questions about keys until so many were refused."""
    while guard.num_refused < num_refused:
        assert await asyncio.to_thread(guard.socket.poll, 10_000), "the frontend did not try again"
        guard.handle()


async def test_a_frontend_whose_key_is_accepted_later_gets_in(caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory(prefix="hs-") as folder, zmq.Context() as served, zmq.Context() as ours:
        create_keys(f"{folder}/k")
        keys = load_client_keys(f"{folder}/k")
        guard = KeyGuard(served, frozenset())
        router = BoundRouter(served, "tcp://127.0.0.1:0", load_server_keys(f"{folder}/k"))
        client = EngineClient(ours, EngineSession("f", "0", router.address), keys)
        client.start()
        with caplog.at_level(logging.WARNING):
            await answer_until(guard, 2)
        assert sorted(record.name for record in caplog.records) == [
            "engine_core",
            "splitserve.frontend.engines.connection.handshake",
        ]
        assert "does not know the key" in caplog.text
        guard._accepted = frozenset((keys.public,))
        assert await asyncio.to_thread(guard.socket.poll, 10_000)
        guard.handle()
        assert await asyncio.to_thread(router.socket.poll, 10_000)
        assert [message.frame for message in router.receive(1)] == [HELLO]
        await client.close()
        router.close()
        guard.close()


def test_a_row_of_failures_is_told_once_and_retried_at_its_pace(caplog: pytest.LogCaptureFixture) -> None:
    watch = HandshakeWatch("tcp://127.0.0.1:1", has_keys=True)
    assert watch.failed(AUTH, 0.0)
    assert not watch.failed(AUTH, 0.1), "it is disconnected already"
    assert not watch.take_retry(RETRY_S)
    assert watch.take_retry(0.1 + RETRY_S)
    assert not watch.take_retry(9.0)
    assert watch.failed(AUTH, 9.0)
    assert len(caplog.records) == 1
    watch.succeeded()
    assert not watch.take_retry(99.0)
    assert watch.failed(AUTH, 99.0)
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("address", "has_keys", "hint"),
    [
        ("tcp://127.0.0.1:1", False, "it may want --keys"),
        ("tcp://127.0.0.1:1", True, "engine.key may differ"),
        ("ipc:///tmp/e.sock", False, "the handshake failed"),
    ],
)
def test_a_handshake_that_broke_off_names_the_likely_cause(
    caplog: pytest.LogCaptureFixture, address: str, has_keys: bool, hint: str
) -> None:
    HandshakeWatch(address, has_keys=has_keys).failed(int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL), 0.0)
    assert hint in caplog.text
