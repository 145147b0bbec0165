"""The Ray actor that runs on a node: it reports where it is, then runs a worker until that exits."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from typing import NamedTuple

import msgspec

from splitserve.engine_core.ipc.curve import ClientKeys
from splitserve.engine_core.settings.worker_settings import WorkerPlace
from splitserve.worker.cli import run_worker

_SIOCGIFADDR = 0x8915


class Spot(NamedTuple):
    """Where an actor is: its node's address and id, and its process."""

    address: str
    node_id: str
    pid: int


class WorkerActor:
    """One rank. Ray calls one method at a time, on the main thread."""

    def __init__(self) -> None:
        self._listening: socket.socket | None = None

    def locate(self) -> Spot:
        """Return where this actor runs."""
        import ray

        context = ray.get_runtime_context()
        return Spot(ray.util.get_node_ip_address(), context.get_node_id(), os.getpid())

    def open_rendezvous(self) -> str:
        """Listen on this node's address, from now on, so that the port is safe; returns tcp://HOST:PORT."""
        import ray

        host: str = ray.util.get_node_ip_address()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.socket(family, socket.SOCK_STREAM)
        self._listening.bind((host, 0))
        self._listening.listen()
        port = self._listening.getsockname()[1]
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    def run(self, place: WorkerPlace, keys: ClientKeys) -> int:
        """Run a worker; returns its exit code.

        Args:
            place: where the engine and the other ranks are.
            keys: for the engine's socket.
        """
        import ray

        interface = interface_of(ray.util.get_node_ip_address())
        if interface:
            # Otherwise they take the one that the host's name resolves to, which often is loopback.
            for library in ("GLOO", "NCCL"):
                os.environ.setdefault(f"{library}_SOCKET_IFNAME", interface)
        if self._listening is not None:
            place = msgspec.structs.replace(place, rendezvous_fd=self._listening.detach())
            self._listening = None
        place.validate()
        return run_worker(place, os.getppid(), keys)


def interface_of(address: str) -> str:
    """Return the network interface that has an IPv4 address, "" if none has or the system cannot tell."""
    if ipaddress.ip_address(address).version != 4:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            query = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, query)
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""
