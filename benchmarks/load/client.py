"""A process of many HTTP clients, until all is done or stdin ends.

Usage: python -m benchmarks.load.client PLAN REPORT

One loop over epoll. What comes is only kept while it comes, with the time at which the kernel received it: so
a client that is late, as it is on a machine of few cores, is not taken for a late server.
"""

from __future__ import annotations

import ctypes
import gc
import random
import select
import socket
import struct
import sys
import time
from pathlib import Path

import msgspec

from benchmarks.compare.stream_client import Arrival, request_bytes
from benchmarks.load.plan import Ask, End, Plan, Reader, Report, Seen
from benchmarks.load.stream_log import StreamLog

# Between two looks at the sockets: a reader that waits in epoll is woken by each write, at the writer's cost.
PAUSE_S = 0.003
READ_BYTES = 16384
SMALL_BUFFER_BYTES = 4096
SLOW_PERIOD_S = 1.0
# From asm-generic/socket.h; Python has no names for them.
SO_TIMESTAMPNS = 35
SO_ATTACH_FILTER = 26
_TIMESPEC = struct.Struct("qq")
_HOST = "127.0.0.1"


def drop_what_comes(client: socket.socket) -> None:
    """Let the kernel drop every packet for a connection, so that its peer hears nothing any more."""
    # One instruction of a BPF program: return 0, which means keep nothing of the packet.
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    filter_ = struct.pack("HL", 1, ctypes.addressof(program))
    client.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filter_)


class Clients:
    """All streams of this process."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._asks = list(reversed(plan.asks))
        self._again_until_s = plan.start_s + plan.again_s
        self._rng = random.Random(plan.name)
        self._num_sent = 0
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._logs: dict[int, StreamLog] = {}
        self._unsent: dict[int, bytes] = {}
        self._hang_ups: dict[int, float] = {}
        self._slow: set[int] = set()
        self._next_slow_s = 0.0
        self.seen: list[Seen] = []

    @property
    def is_done(self) -> bool:
        """Whether nothing is open and nothing is left to ask."""
        return not self._asks and not self._sockets

    def watch(self, fd: int) -> None:
        """Let turn() tell of input at another descriptor."""
        self._epoll.register(fd, select.EPOLLIN)

    def turn(self) -> bool:
        """Send what is due, read what has come; return whether the other descriptor has input."""
        now_s = time.time()
        while self._asks and self._plan.start_s + self._asks[-1].at_s <= now_s:
            self._send(self._asks.pop())
        for fd in [fd for fd, at_s in self._hang_ups.items() if at_s <= now_s]:
            self._end(fd, End.HUNG_UP)
        if self._slow and now_s >= self._next_slow_s:
            self._next_slow_s = now_s + SLOW_PERIOD_S
            for fd in tuple(self._slow):
                self._read(fd, 1)
        time.sleep(PAUSE_S)
        other = False
        for fd, events in self._epoll.poll(0, 65536):
            if fd not in self._sockets:
                other = True
            elif fd in self._unsent:
                self._connected(fd)
            elif events & (select.EPOLLERR | select.EPOLLHUP) and not events & select.EPOLLIN:
                self._end(fd, End.BROKEN)
            else:
                self._read(fd, READ_BYTES)
        return other

    def close(self) -> None:
        """Stop looking at what is still open."""
        for fd in tuple(self._sockets):
            self._end(fd, End.OPEN)

    def _send(self, ask: Ask) -> None:
        client = socket.socket()
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        if ask.reader is not Reader.EAGER:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
        client.connect_ex((_HOST, ask.port))
        fd = client.fileno()
        request_id = f"{self._plan.name}-{self._num_sent}"
        self._num_sent += 1
        body = self._plan.bodies[ask.body]
        self._unsent[fd] = request_bytes(f"http://{_HOST}:{ask.port}", body, request_id)
        self._sockets[fd] = client
        self._logs[fd] = StreamLog(request_id, ask, time.time())
        if ask.hang_up_s:
            self._hang_ups[fd] = time.time() + ask.hang_up_s
        self._epoll.register(fd, select.EPOLLOUT)

    def _connected(self, fd: int) -> None:
        client, request, ask = self._sockets[fd], self._unsent.pop(fd), self._logs[fd].ask
        if client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._end(fd, End.BROKEN)
            return
        self._logs[fd].sent_s = time.time()
        client.send(request)
        if ask.reader is Reader.EAGER:
            self._epoll.modify(fd, select.EPOLLIN)
        else:
            self._epoll.modify(fd, 0)
        if ask.reader is Reader.SLOW:
            self._slow.add(fd)
        if ask.reader is Reader.GONE:
            drop_what_comes(client)

    def _read(self, fd: int, num_bytes: int) -> None:
        try:
            data, stamps, _, _ = self._sockets[fd].recvmsg(num_bytes, 64)
        except BlockingIOError:
            return
        except OSError:
            self._end(fd, End.BROKEN)
            return
        if not data:
            self._end(fd, End.BROKEN)
            return
        if stamps:
            seconds, nanoseconds = _TIMESPEC.unpack(stamps[0][2])
            at_s = seconds + nanoseconds * 1e-9
        else:
            at_s = time.time()
        self._logs[fd].arrivals.append(Arrival(at_s, data))

    def _end(self, fd: int, end: End) -> None:
        log = self._logs.pop(fd)
        now_s = time.time()
        self._epoll.unregister(fd)
        self._sockets.pop(fd).close()
        self._unsent.pop(fd, None)
        self._hang_ups.pop(fd, None)
        self._slow.discard(fd)
        self.seen.append(log.read(end, now_s, self._plan.texts[log.ask.body]))
        if end is not End.OPEN and now_s < self._again_until_s:
            body = self._rng.randrange(len(self._plan.bodies))
            self._send(Ask(0.0, log.ask.port, body, log.ask.reader, log.ask.hang_up_s))


def main() -> int:
    """Run the plan and write the report."""
    plan_path, report_path = map(Path, sys.argv[1:])
    clients = Clients(msgspec.msgpack.decode(plan_path.read_bytes(), type=Plan))
    clients.watch(sys.stdin.fileno())
    # Nothing here is cyclic, and a collection among a million arrivals stops the reader for long.
    gc.disable()
    while not clients.is_done and not clients.turn():
        pass
    clients.close()
    report_path.write_bytes(msgspec.msgpack.encode(Report(clients.seen, time.process_time())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
