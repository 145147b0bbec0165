"""Which connections does a bound socket have right now? Watched, and closed, through libzmq's monitor.

libzmq accepts whatever connects and offers no way to refuse or close a connection. So the file descriptor,
which the monitor reports, is shut down instead; to libzmq that looks as if the peer had left.
"""

from __future__ import annotations

import contextlib
import itertools
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
# The first frame of an event: its number and value; the second frame is an address.
_EVENT = struct.Struct("=HI")
WARN_INTERVAL_S = 10.0
# How often to read the byte counts of TCP connections. Loopback carries a few hundred MiB in this time.
CHECK_S = 0.25
# Where Linux's TCP_INFO holds the number of bytes received.
_RECEIVED = struct.Struct("=128xQ")
# Names of monitors. libzmq frees that of a closed socket some time later, so none may be used again: an
# object's id would be.
_numbers = itertools.count()


class Changes(NamedTuple):
    """What has happened since the last look.

    Attributes:
        ended: some connection has ended.
        unbound: the socket no longer listens.
    """

    ended: bool = False
    unbound: bool = False


class ConnectionWatch:
    """The connections of one socket; made before it is bound, used by its thread.

    Args:
        sock: not bound yet.
        table: what is known of its connections.
        unread: bytes received on TCP connections. The peers of a Unix socket run as our own user, and nothing
            counts their bytes.
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
        name = f"inproc://connections-{next(_numbers)}"
        sock.monitor(name, _EVENTS)
        self.monitor: zmq.Socket[bytes] = sock.context.socket(zmq.PAIR)
        # Once 1,000 events and this many are unread, libzmq stops accepting connections.
        self.monitor.rcvhwm = 1
        self.monitor.connect(name)

    def bound(self, address: str) -> None:
        """The socket is bound to this address, written as libzmq writes it."""
        self._address = address
        if address.startswith("tcp://"):
            self._family = socket.AF_INET6 if "[" in address else socket.AF_INET

    def take(self, now_s: float) -> Changes:
        """Process the events since the last call; refuse connections beyond the limit."""
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
        """The peer of a connection is now known; an earlier connection with the same identity is ended."""
        before = self.table.greet(descriptor, identity, now_s)
        if before is not None:
            self._shut(before)

    def end(self, descriptor: int, now_s: float) -> None:
        """End a connection."""
        if self.table.end(descriptor, now_s):
            self._shut(descriptor)

    def end_silent(self, now_s: float) -> None:
        """End the connections of all unknown peers, as one of them misbehaves; the others will reconnect."""
        for descriptor in self.table.end_silent(now_s):
            self._shut(descriptor)

    def sweep(self, now_s: float, is_known: Callable[[bytes], bool]) -> None:
        """End the connections whose peers have been unknown for too long, or send bytes without end."""
        for descriptor in self.table.sweep(now_s, is_known):
            self._shut(descriptor)
        if now_s >= self._check_s:
            self._check_s = now_s + CHECK_S if len(self.table) else NEVER
            self._check_unread(now_s)

    def close(self) -> None:
        """Close the monitor; call it before closing the socket."""
        # An unread monitor blocks libzmq's thread once its queue is full, and this call would then hang too.
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
        """Call `what` with one of our connections; None if it has just ended by itself."""
        try:
            # All arguments are given, or Python would ask the kernel for each; time counts in a flood.
            connection = socket.socket(self._family, socket.SOCK_STREAM, 0, fileno=descriptor)
        except OSError:
            return None
        try:
            # If the descriptor has meanwhile been reused for anything else, it is left alone.
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
