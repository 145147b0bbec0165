"""Many HTTP clients in one cheap process: each opens a stream, and what comes is counted, not parsed.

Usage: python -m benchmarks.stream_readers HOST PORT NUM_STREAMS PATH [--again] < script

The first line of stdin is the body of all requests. When every stream has brought its first event, "flowing"
is written to stdout; each further line of stdin is answered with the counts so far, as one line of JSON. With
--again a stream that ends is followed by a new one.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from typing import NamedTuple

# New streams per look at the sockets, and streams whose first event is still awaited: a server needs about a
# millisecond of CPU time for each, and must not stand still for as long as a lease lasts.
OPENED_PER_TURN = 2
MAX_OPENING = 512
READ_BYTES = 65536
# Pause between two looks at the sockets. A reader that waits in epoll is woken by each write, on a machine of
# few cores often at the writer's cost; clients elsewhere do not take the server's cores.
PAUSE_S = 0.005
EVENT = b"data: {"
END = b"data: [DONE]"
HEAD = b"HTTP/1.1 "


class Counts(NamedTuple):
    """What all streams have brought so far.

    Attributes:
        events: "data: {" seen; one that is cut by the end of a read is missed.
        ended: streams that have ended, in order or not.
    """

    events: int = 0
    num_bytes: int = 0
    ended: int = 0


def post(path: str, body: bytes) -> bytes:
    """Return a whole HTTP request."""
    head = f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


class StreamReaders:
    """The streams of this process; `again`: one that ends is followed by a new one."""

    def __init__(
        self, address: tuple[str, int], request: bytes, num_streams: int, *, again: bool = False
    ) -> None:
        self.counts = Counts()
        self._again = again
        self._address = address
        self._request = request
        self._to_open = num_streams
        self._opening: set[int] = set()
        self._sockets: dict[int, socket.socket] = {}
        self._epoll = select.epoll()

    @property
    def flowing(self) -> bool:
        """Whether every stream has brought its first event."""
        return not self._to_open and not self._opening

    def watch(self, fd: int) -> None:
        """Let turn() return when this descriptor has input, too."""
        self._epoll.register(fd, select.EPOLLIN)

    def turn(self) -> bool:
        """Open a few streams, read what has come; return whether another descriptor has input."""
        room = MAX_OPENING - len(self._opening)
        for _ in range(min(self._to_open, OPENED_PER_TURN, room)):
            self._open()
        time.sleep(PAUSE_S)
        other = False
        for fd, _ in self._epoll.poll(0 if self._to_open else None):
            client = self._sockets.get(fd)
            if client is None:
                other = True
            else:
                self._read(fd, client)
        return other

    def close(self) -> None:
        """Hang up all streams."""
        for client in self._sockets.values():
            client.close()
        self._epoll.close()

    def _open(self) -> None:
        client = socket.create_connection(self._address)
        client.setblocking(False)
        client.send(self._request)
        self._sockets[client.fileno()] = client
        self._opening.add(client.fileno())
        self._to_open -= 1
        self._epoll.register(client.fileno(), select.EPOLLIN)

    def _read(self, fd: int, client: socket.socket) -> None:
        data = client.recv(READ_BYTES)
        events, num_bytes, ended = self.counts
        num_events = data.count(EVENT)
        if num_events:
            self._opening.discard(fd)
        is_end = not data or END in data
        if is_end:
            if fd in self._opening:
                raise RuntimeError(f"a stream ended before its first event: {data[:500]!r}")
            self._epoll.unregister(fd)
            del self._sockets[fd]
            client.close()
            self._to_open += self._again
        elif data.startswith(HEAD) and not data.startswith(HEAD + b"200"):
            raise RuntimeError(f"a stream was refused: {data[:500]!r}")
        self.counts = Counts(events + num_events, num_bytes + len(data), ended + is_end)


def main() -> int:
    """Run until stdin ends."""
    host, port, num_streams, path, *again = sys.argv[1:]
    body = sys.stdin.readline().strip().encode()
    readers = StreamReaders((host, int(port)), post(path, body), int(num_streams), again=again == ["--again"])
    readers.watch(sys.stdin.fileno())
    told = False
    while True:
        asked = readers.turn()
        if readers.flowing and not told:
            told = True
            print("flowing", flush=True)
        if asked:
            if not sys.stdin.readline():
                readers.close()
                return 0
            print(json.dumps(readers.counts._asdict()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
