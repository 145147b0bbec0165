"""Which network interface an actor's node address belongs to."""

from __future__ import annotations

import socket
import sys

import pytest

from splitserve.worker.ray.actor import WorkerActor, interface_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")


def test_the_interface_of_an_address_is_found() -> None:
    assert interface_of("127.0.0.1") == "lo"


@pytest.mark.parametrize("address", ["203.0.113.77", "::1"])
def test_an_address_that_no_interface_has_gives_none(address: str) -> None:
    assert interface_of(address) == ""


def test_the_rendezvous_listens_on_the_nodes_own_address_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed, or there is none for this Python")
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    actor = WorkerActor()
    host, _, port = actor.open_rendezvous().removeprefix("tcp://").rpartition(":")
    assert host == "127.0.0.1"
    with socket.create_connection((host, int(port)), timeout=5):
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", int(port)), timeout=5)
    assert actor._listening is not None
    actor._listening.close()
