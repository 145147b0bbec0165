"""`splitserve serve` lets its engine publish KV events, with keys where they are given."""

from __future__ import annotations

import tempfile
from pathlib import Path

import zmq

from splitserve.engine_core.ipc.curve import create_keys, load_client_keys
from tests.engine_core.kv_events.router import AllBlocksCleared, BlockStored, Router
from tests.engine_core.launcher.serving import DEADLINE_S, serving


def test_a_subscriber_with_a_key_hears_of_a_completion() -> None:
    with tempfile.TemporaryDirectory(prefix="kv-") as folder, zmq.Context() as context:
        create_keys(f"{folder}/keys")
        flags = (
            *("--kv-events-address", f"ipc://{folder}/events.sock", "--block-size", "2"),
            *("--kv-events-replay-address", "tcp://127.0.0.1:0", "--keys", f"{folder}/keys"),
        )
        with serving(*flags) as server:
            address = server.wait_for(r"publishing KV events .*replay_address=(tcp://127\.0\.0\.1:\d+)")[1]
            server.complete(server.url())
            keys = load_client_keys(f"{folder}/keys")
            with context.socket(zmq.DEALER) as client:
                client.linger = 0
                client.curve_publickey, client.curve_secretkey = keys.public, keys.secret
                client.curve_serverkey = keys.server
                client.connect(address)
                client.send_multipart([b"", bytes(8)])
                router, events = Router(), []
                while True:
                    assert client.poll(int(DEADLINE_S * 1000))
                    *_, payload = client.recv_multipart()
                    if not payload:
                        break
                    events += router.hear(payload).events
            assert server.stop() == 0
        assert events[0] == AllBlocksCleared()
        assert any(isinstance(event, BlockStored) for event in events[1:])
        assert sorted(path.name for path in Path(folder).iterdir()) == ["keys"]
