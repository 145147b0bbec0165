"""Watches the connections of a bound socket through libzmq's monitor, and ends those that have to.

libzmq accepts whatever connects and offers no way to refuse or to end a connection: its descriptor, which the
monitor tells, is shut down instead, which looks to libzmq as if the peer had left.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import zmq

from splitserve.engine_core.ipc.connections import NEVER, ConnectionTable
from splitserve.engine_core.ipc.unread_bytes import UnreadBytes
from splitserve.engine_core.process.logs import log_event

_log = logging.getLogger("engine_core")

T = TypeVar("T")

_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CLOSE_FAILED
# The first frame of an event: which one, and its value; the second is an address.
_EVENT = struct.Struct("=HI")
WARN_INTERVAL_S = 10.0
# How often is asked what TCP connections have brought. In this time loopback carries some hundred MiB.
CHECK_S = 0.25
# Where Linux puts the number of bytes received into its TCP_INFO.
_RECEIVED = struct.Struct("=128xQ")


class Changes(NamedTuple):
    """What has happened since the last look.

    Attributes:
        ended: some connection has ended.
        unbound: the socket does not listen any more.
    """

    ended: bool = False
    unbound: bool = False


class ConnectionWatch:
    """The connections of one socket; made before it is bound, used by its thread.

    Args:
        sock: not bound yet.
        table: what is known of its connections.
        unread: what TCP connections have brought. A Unix socket's peers are of our user, and nothing counts
            their bytes.
    """

    def __init__(self, sock: zmq.Socket[bytes], table: ConnectionTable, unread: UnreadBytes) -> None:
        self.table = table
        self.heard = unread.heard
        self._unread = unread
        self._check_s = NEVER
        self._warn_s = 0.0
        self._sock = sock
        self._address = ""
        self._family = socket.AF_UNIX
        name = f"inproc://connections-{id(self)}"
        sock.monitor(name, _EVENTS)
        self.monitor: zmq.Socket[bytes] = sock.context.socket(zmq.PAIR)
        # When 1,000 events and this many wait, libzmq accepts no more.
        self.monitor.rcvhwm = 1
        self.monitor.connect(name)

    def bound(self, address: str) -> None:
        """The socket is bound to this address, written as libzmq writes it."""
        self._address = address
        if address.startswith("tcp://"):
            self._family = socket.AF_INET6 if "[" in address else socket.AF_INET

    def take(self, now_s: float) -> Changes:
        """Take what has happened; refuse connections beyond the bound."""
        ended = unbound = False
        for kind, value in self._events():
            if kind == zmq.EVENT_ACCEPTED:
                self._accept(value, now_s)
            elif kind == zmq.EVENT_DISCONNECTED:
                self.table.closed(value)
                ended = True
            else:
                unbound = True
        return Changes(ended, unbound)

    def next_due_s(self) -> float:
        """Return the time at which sweep() has to be called; inf when nothing is due."""
        return min(self.table.next_due_s(), self._check_s)

    def greet(self, descriptor: int, identity: bytes, now_s: float) -> None:
        """The peer of a connection is known; one that had its identity before ends."""
        before = self.table.greet(descriptor, identity, now_s)
        if before is not None:
            self._shut(before)

    def end(self, descriptor: int, now_s: float) -> None:
        """End a connection."""
        if self.table.end(descriptor, now_s):
            self._shut(descriptor)

    def end_silent(self, now_s: float) -> None:
        """End the connections of all unknown peers, one of which misbehaves; others will connect again."""
        for descriptor in self.table.end_silent(now_s):
            self._shut(descriptor)

    def sweep(self, now_s: float, is_known: Callable[[bytes], bool]) -> None:
        """End the connections whose peers have been unknown for too long, or bring bytes without end."""
        for descriptor in self.table.sweep(now_s, is_known):
            self._shut(descriptor)
        if now_s >= self._check_s:
            self._check_s = now_s + CHECK_S if len(self.table) else NEVER
            self._check_unread(now_s)

    def close(self) -> None:
        """Close the monitor; before the socket."""
        # A monitor that nobody reads stops libzmq's thread when its queue is full, and then also this call.
        for _ in self._events():
            pass
        self._sock.disable_monitor()
        self.monitor.close(linger=0)

    def _events(self) -> Iterator[tuple[int, int]]:
        with contextlib.suppress(zmq.Again):
            while True:
                event = self.monitor.recv(zmq.NOBLOCK)
                self.monitor.recv(zmq.NOBLOCK)
                yield _EVENT.unpack(event)

    def _accept(self, descriptor: int, now_s: float) -> None:
        self._unread.opened(descriptor)
        if self._family is not socket.AF_UNIX and hasattr(socket, "TCP_INFO"):
            self._check_s = min(self._check_s, now_s + CHECK_S)
        victim = self.table.opened(descriptor, now_s)
        if victim is None:
            return
        self._shut(victim)
        if now_s >= self._warn_s:
            self._warn_s = now_s + WARN_INTERVAL_S
            log_event(
                _log,
                logging.WARNING,
                "too many connections",
                address=self._address,
                most=self.table.max_connections,
                refused=self.table.num_refused,
            )

    def _check_unread(self, now_s: float) -> None:
        received = {descriptor: self._num_received(descriptor) for descriptor in self.table.open()}
        for descriptor in self._unread.check(received):
            log_event(_log, logging.WARNING, "message without an end", address=self._address)
            self.end(descriptor, now_s)

    def _num_received(self, descriptor: int) -> int:
        info = self._ask(descriptor, _tcp_info)
        return int(_RECEIVED.unpack(info)[0]) if info is not None and len(info) == _RECEIVED.size else 0

    def _shut(self, descriptor: int) -> None:
        self._ask(descriptor, _shut_down)

    def _ask(self, descriptor: int, what: Callable[[socket.socket], T]) -> T | None:
        """Call with a connection of ours; None if it has just ended by itself."""
        try:
            # Given whole, as Python would ask the kernel for each; a flood of connections is a race.
            connection = socket.socket(self._family, socket.SOCK_STREAM, 0, fileno=descriptor)
        except OSError:
            return None
        try:
            # What the descriptor may have been given to meanwhile, other than a connection, is not touched.
            return what(connection) if self._is_ours(connection.getsockname()) else None
        except OSError:
            return None
        finally:
            connection.detach()

    def _is_ours(self, name: object) -> bool:
        if isinstance(name, tuple):
            return self._address.endswith(f":{name[1]}")
        return self._address == f"ipc://{name}"


def _tcp_info(connection: socket.socket) -> bytes:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)


def _shut_down(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RDWR)
