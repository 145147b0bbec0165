"""How a socket is bound: its limits, its keys, and the files that go with it."""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

import zmq

from engine_core.errors import ConfigError
from engine_core.ipc.addresses import (
    check_keys,
    claim_ipc_path,
    ipc_path,
    is_ipc,
    make_private_directory,
    wants_ipv6,
)
from engine_core.ipc.curve import ServerKeys

# Only TCP needs them: a peer of a Unix socket cannot vanish without the kernel closing its end.
TCP_HEARTBEAT_MS = 5_000
TCP_HEARTBEAT_TIMEOUT_MS = 15_000
TCP_KEEPALIVE_IDLE_S = 15


class SocketLimits(NamedTuple):
    """Bounds of one socket.

    Attributes:
        max_message_bytes: of a message received; libzmq closes the connection of a peer that sends more.
        send_hwm: messages that wait for one peer to read them.
        receive_hwm: messages of one peer that wait to be read.
        heartbeats: whether ZMTP heartbeats find dead TCP peers. Not all implementations of other languages
            answer them; without, the kernel's keep-alive does.
    """

    max_message_bytes: int
    send_hwm: int
    receive_hwm: int
    heartbeats: bool = True


def set_limits(sock: zmq.Socket, address: str, limits: SocketLimits) -> None:
    """Set what has to be set before a socket is bound or connected."""
    sock.setsockopt(zmq.LINGER, 0)
    sock.setsockopt(zmq.MAXMSGSIZE, limits.max_message_bytes)
    sock.setsockopt(zmq.SNDHWM, limits.send_hwm)
    sock.setsockopt(zmq.RCVHWM, limits.receive_hwm)
    if is_ipc(address):
        return
    sock.setsockopt(zmq.IPV6, int(wants_ipv6(address)))
    if limits.heartbeats:
        sock.setsockopt(zmq.HEARTBEAT_IVL, TCP_HEARTBEAT_MS)
        sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, TCP_HEARTBEAT_TIMEOUT_MS)
    else:
        sock.setsockopt(zmq.TCP_KEEPALIVE, 1)
        sock.setsockopt(zmq.TCP_KEEPALIVE_IDLE, TCP_KEEPALIVE_IDLE_S)


class BoundSocket:
    """A bound socket and its files; used by one thread."""

    def __init__(
        self,
        context: zmq.Context,
        kind: int,
        address: str,
        limits: SocketLimits,
        keys: ServerKeys | None = None,
        *,
        allow_insecure_tcp: bool = False,
    ) -> None:
        """Bind.

        Raises:
            ConfigError: the address is in use, not allowed without keys, or its directory is not private.
        """
        check_keys(address, keys is not None, allow_insecure_tcp)
        self._made_directory = ""
        self._path = ipc_path(address) if is_ipc(address) else ""
        self.socket: zmq.Socket[bytes] = context.socket(kind)
        set_limits(self.socket, address, limits)
        if keys is not None and not is_ipc(address):
            self.socket.setsockopt(zmq.CURVE_SERVER, 1)
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        try:
            self._bind(address)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """The address bound, with the port that was chosen when port 0 was asked for."""
        return self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def _bind(self, address: str) -> None:
        try:
            if self._path:
                self._bind_ipc(address)
            else:
                self.socket.bind(address)
        except zmq.ZMQError as error:
            raise ConfigError(f"cannot listen on {address}: {error}") from None

    def _bind_ipc(self, address: str) -> None:
        directory = os.path.dirname(os.path.abspath(self._path))
        if make_private_directory(directory):
            self._made_directory = directory
        with claim_ipc_path(self._path):
            self.socket.bind(address)
            os.chmod(self._path, 0o600)

    def close(self, linger_ms: int = 0) -> None:
        """Close; remove the socket file and a directory that this object made.

        Args:
            linger_ms: how long the context's end may wait for peers to take what is queued for them.
        """
        if self.socket.closed:
            return
        bound = bool(self._path) and self.socket.getsockopt(zmq.LAST_ENDPOINT) != b""
        self.socket.disable_monitor()
        self.socket.close(linger=linger_ms)
        if bound:
            # libzmq removes it too, but from its own thread and some time later.
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        if self._made_directory:
            with contextlib.suppress(OSError):
                os.rmdir(self._made_directory)
            self._made_directory = ""
