"""How is a socket bound? Its limits, its keys, and the files that go with it."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
from collections.abc import Callable
from typing import NamedTuple

import zmq

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.addresses import (
    check_keys,
    claim_ipc_path,
    ipc_path,
    is_ipc,
    make_private_directory,
    wants_ipv6,
)
from splitserve.engine_core.ipc.connection_watch import ConnectionWatch
from splitserve.engine_core.ipc.connections import ConnectionTable
from splitserve.engine_core.ipc.curve import ServerKeys
from splitserve.engine_core.ipc.unread_bytes import UnreadBytes
from splitserve.engine_core.process.logs import log_event

_log = logging.getLogger("engine_core")

# A connection to a machine that is gone ends after about 15 s. Only TCP needs this: the peer of a Unix socket
# cannot vanish without the kernel closing its end. ZMTP heartbeats are not used: libzmq 4.3.5 aborts the
# process when one is due on a connection that ended while its queue was full.
TCP_KEEPALIVE_IDLE_S = 5
TCP_KEEPALIVE_INTERVAL_S = 5
TCP_KEEPALIVE_COUNT = 2
# How long data may stay unacknowledged, or unread by the other side.
TCP_USER_TIMEOUT_MS = 15_000
HANDSHAKE_MS = 10_000
# libzmq stops reading a connection whose queue is full. If the peer ends then, what the kernel still holds of
# it is lost, the descriptor may never be closed, and a ZMTP PING among the last bytes read aborts the
# process. So the queues of bound sockets are unlimited in libzmq: their owners empty them, and end a
# connection that sends too much.
NO_BOUND = 0
# Descriptors a process needs for anything but connections.
_RESERVED_DESCRIPTORS = 64
# Share of the descriptors: libzmq accepts a few more before we can refuse them, and there are other sockets.
_MAX_SHARE = 0.2


class SocketLimits(NamedTuple):
    """Bounds of one socket.

    Attributes:
        max_message_bytes: largest message received; libzmq closes the connection of a peer that sends more.
        send_hwm: most messages queued for one peer.
        receive_hwm: most messages of one peer waiting to be read.
        max_connections: of a bound socket; fewer if this process may open few descriptors.
        patience_s: see ConnectionTable.
    """

    max_message_bytes: int
    send_hwm: int
    receive_hwm: int = NO_BOUND
    max_connections: int = 64
    patience_s: float | None = None


def set_limits(sock: zmq.Socket, address: str, limits: SocketLimits) -> None:
    """Set the options that must be set before a socket is bound or connected."""
    sock.setsockopt(zmq.LINGER, 0)
    sock.setsockopt(zmq.MAXMSGSIZE, limits.max_message_bytes)
    sock.setsockopt(zmq.SNDHWM, limits.send_hwm)
    sock.setsockopt(zmq.RCVHWM, limits.receive_hwm)
    if is_ipc(address):
        return
    sock.setsockopt(zmq.IPV6, int(wants_ipv6(address)))
    sock.setsockopt(zmq.TCP_KEEPALIVE, 1)
    sock.setsockopt(zmq.TCP_KEEPALIVE_IDLE, TCP_KEEPALIVE_IDLE_S)
    sock.setsockopt(zmq.TCP_KEEPALIVE_INTVL, TCP_KEEPALIVE_INTERVAL_S)
    sock.setsockopt(zmq.TCP_KEEPALIVE_CNT, TCP_KEEPALIVE_COUNT)
    sock.setsockopt(zmq.TCP_MAXRT, TCP_USER_TIMEOUT_MS)


def affordable_connections(wanted: int) -> int:
    """Return how many connections one socket may have, given how many descriptors this process may open."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(1, min(wanted, int(_MAX_SHARE * (descriptors - _RESERVED_DESCRIPTORS))))


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
        self._is_rebinding = False
        self._address = address
        self._path = ipc_path(address) if is_ipc(address) else ""
        self.socket: zmq.Socket[bytes] = context.socket(kind)
        table = ConnectionTable(affordable_connections(limits.max_connections), limits.patience_s)
        unread = UnreadBytes(limits.max_message_bytes)
        self.connections = ConnectionWatch(self.socket, table, unread)
        set_limits(self.socket, address, limits)
        self.socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        if kind == zmq.ROUTER:
            self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
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
        """The bound address; if port 0 was asked for, with the port that was chosen."""
        return self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def _bind(self, address: str) -> None:
        try:
            if self._path:
                self._bind_ipc(address)
            else:
                self.socket.bind(address)
        except zmq.ZMQError as error:
            raise ConfigError(f"cannot listen on {address}: {error}") from None
        self.connections.bound(self.address)

    def _bind_ipc(self, address: str) -> None:
        directory = os.path.dirname(os.path.abspath(self._path))
        if make_private_directory(directory):
            self._made_directory = directory
        with claim_ipc_path(self._path):
            self.socket.bind(address)
            os.chmod(self._path, 0o600)

    def look_after(self, now_s: float, is_known: Callable[[bytes], bool] = lambda identity: True) -> bool:
        """Process what happened to the connections, and end those that have to.

        If too many do not end although they were told to, the socket is bound again, which ends all of them.

        Args:
            now_s: the time.
            is_known: whether the peer of an identity is still known.

        Returns:
            Whether some have ended.

        Raises:
            ConfigError: another process has taken the address meanwhile.
        """
        changes = self.connections.take(now_s)
        self.connections.sweep(now_s, is_known)
        if changes.unbound and self._is_rebinding:
            self._is_rebinding = False
            self.connections.table.clear()
            self._bind(self._address)
            return True
        if not self._is_rebinding and self.connections.table.is_stuck(now_s):
            self._is_rebinding = True
            self._address = self.address
            log_event(
                _log,
                logging.WARNING,
                "connections cannot be closed, binding the socket again",
                address=self._address,
            )
            self.socket.unbind(self._address)
        return changes.ended

    def close(self, linger_ms: int = 0) -> None:
        """Close; remove the socket file and a directory that this object made.

        Args:
            linger_ms: how long terminating the context may wait for peers to take what is queued for them.
        """
        if self.socket.closed:
            return
        bound = bool(self._path) and self.socket.getsockopt(zmq.LAST_ENDPOINT) != b""
        self.connections.close()
        self.socket.close(linger=linger_ms)
        if bound:
            # libzmq removes it too, but from its own thread and some time later.
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        if self._made_directory:
            with contextlib.suppress(OSError):
                os.rmdir(self._made_directory)
            self._made_directory = ""
