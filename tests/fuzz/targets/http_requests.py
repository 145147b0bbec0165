"""Mutated requests on the sockets of a running server, and clients that hang up at any point.

A piece of a case is a byte that says what the client does, one that says when, then the request:

    0   sends it all, closes its sending side, and reads all answers
    1   sends it in two parts, cut at that share of it, then as 0
    2   sends a part of it, and hangs up
    3   sends it all, reads that many bytes at most and for a moment only, and resets the connection
    4   sends it all, and hangs up

Sixteen at a time are open together. Every status must be documented, and never 500.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
from collections import Counter
from random import Random

from tests.fuzz.answers import STATUSES, check_answer
from tests.fuzz.case import Case
from tests.fuzz.mutation.requests import mutate_request, requests
from tests.fuzz.targets.live_server import LiveServer

PIECES_PER_CASE = 64
TOGETHER = 16
DEADLINE_S = 60.0
# A request whose end was cut off is answered when the server's patience is over, after 10 s.
READ_S = 0.1
_HEAD = re.compile(rb"HTTP/1\.[01] (\d{3}) [^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n")
_ALL, _PARTS, _PART, _SOME, _NONE = range(5)


class HttpRequests:
    """See the module."""

    what = "requests"

    def __init__(self, live: LiveServer | None = None) -> None:
        self._corpus = requests()
        self._live = live or LiveServer()
        self._statuses: Counter[int] = Counter()
        self._num_hang_ups = 0

    def draw(self, rng: Random) -> Case:
        return [self._piece(rng) for _ in range(PIECES_PER_CASE)]

    def _piece(self, rng: Random) -> bytes:
        request = self._corpus[int(rng.random() * len(self._corpus))]
        how = _ALL if rng.random() < 0.6 else int(rng.random() * 5)
        # Those who hang up do so most often in something that goes on.
        if how >= _PART and rng.random() < 0.6:
            request = self._corpus[-1 - int(rng.random() * 2)]
        elif rng.random() < 0.9:
            request = mutate_request(rng, request, self._corpus)
        return bytes((how, int(rng.random() * 256))) + request

    def mutate(self, rng: Random, piece: bytes) -> bytes:
        return piece[:2] + mutate_request(rng, piece[2:], self._corpus)

    def run(self, case: Case) -> int:
        for start in range(0, len(case), TOGETHER):
            pieces = case[start : start + TOGETHER]
            with contextlib.ExitStack() as stack:
                clients = [stack.enter_context(Client(self._live.port, piece)) for piece in pieces]
                for client in clients:
                    client.say()
                for client in clients:
                    self._statuses.update(client.hear())
                    self._num_hang_ups += client.hangs_up
        self._live.check()
        return len(case)

    def finish(self) -> str:
        self._live.wait_until_idle()
        statuses = dict(sorted(self._statuses.items()))
        return f"{self._num_hang_ups} hang-ups, statuses {statuses}, {self._live.growth()}"

    def close(self) -> None:
        self._live.close()


class Client:
    """One connection, from its piece of the case to its end."""

    def __init__(self, port: int, piece: bytes) -> None:
        self._how = (piece[0] if piece else 0) % 5
        self._when = piece[1] if len(piece) > 1 else 0
        self._request = piece[2:]
        self.hangs_up = self._how in (_PART, _SOME, _NONE)
        self._socket = socket.create_connection(("127.0.0.1", port), DEADLINE_S)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def say(self) -> None:
        """Send what there is to send; the server may have ended the connection meanwhile."""
        cut = len(self._request) * self._when // 256
        with contextlib.suppress(OSError):
            if self._how in (_PARTS, _PART):
                self._socket.sendall(self._request[:cut])
            if self._how == _PARTS:
                self._socket.sendall(self._request[cut:])
            elif self._how != _PART:
                self._socket.sendall(self._request)
            if not self.hangs_up:
                self._socket.shutdown(socket.SHUT_WR)

    def hear(self) -> list[int]:
        """Read answers, or not; return their statuses."""
        if self._how == _SOME:
            self._socket.settimeout(READ_S)
            with contextlib.suppress(OSError):
                self._socket.recv(1 + self._when * 16)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if self.hangs_up:
            return []
        data = bytearray()
        with contextlib.suppress(ConnectionError):
            while part := self._socket.recv(65536):
                data += part
        return list(check_answers(bytes(data)))


def check_answers(data: bytes) -> list[int]:
    """Check the answers of one connection as far as they are framed; return their statuses.

    Raises:
        AssertionError: a status, or an error object, is not as documented.
    """
    statuses = []
    while (match := _HEAD.match(data)) is not None:
        status, lines = int(match[1]), match[2].decode("latin-1").lower()
        data = data[match.end() :]
        if status == 100:
            continue
        statuses.append(status)
        assert status in STATUSES, f"status {status}: {data[:2000]!r}"
        body, data = _body(lines, data)
        if body is not None:
            kind = re.search(r"^content-type: *([^\r]*)", lines, re.MULTILINE)
            check_answer(status, kind[1] if kind else "", body)
    return statuses


def _body(lines: str, data: bytes) -> tuple[bytes | None, bytes]:
    """Return the body, None if it is not whole or belongs to a HEAD request, and what follows it."""
    length = re.search(r"^content-length: *(\d+)", lines, re.MULTILINE)
    if length is not None:
        size = int(length[1])
        # A HEAD request's answer has the length of a body, but none.
        if len(data) < size or (data.startswith(b"HTTP/1.1 ") and size):
            return None, data if data.startswith(b"HTTP/1.1 ") else b""
        return data[:size], data[size:]
    if "transfer-encoding: chunked" not in lines:
        return None, b""
    parts = []
    while (match := re.match(rb"([0-9a-f]+)\r\n", data)) is not None:
        size = int(match[1], 16)
        parts.append(data[match.end() : match.end() + size])
        data = data[match.end() + size + 2 :]
        if not size:
            return b"".join(parts), data
    return None, b""
