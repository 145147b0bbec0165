"""The inside of such a process: it takes one request after the other from a socket and answers each.

It holds itself to limits that Python code cannot get around: address space, CPU time per request, no files.
Its parent (process.py) kills it when an answer takes too long; it ends by itself when the socket is closed,
and the kernel kills it when the parent dies. Only the standard library may be imported here.

    parent: 8 bytes of length, a request
    child:  a byte that says what the answer is, 8 bytes of length, UTF-8    once when it is ready, then one
                                                                             per request
"""

from __future__ import annotations

import contextlib
import math
import resource
import socket
from collections.abc import Callable, Sequence

READY = b"="
OUT_OF_MEMORY = b"m"
_SENT_AT_ONCE = 65536

Answer = Callable[[bytearray], tuple[bytes, str]]


def main(arguments: Sequence[str], answer: Answer) -> None:
    """Answer requests until the socket is closed or memory has run out once.

    Args:
        arguments: descriptor of the socket, bytes of address space, CPU seconds per request.
        answer: returns what an answer begins with, and its text. Whatever it needs of files it has read.
    """
    fd, max_memory_bytes, max_cpu_s = int(arguments[0]), int(arguments[1]), float(arguments[2])
    connection = socket.socket(fileno=fd)
    _limit(resource.RLIMIT_AS, max_memory_bytes)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    # The socket stays open, another file cannot be opened.
    _limit(resource.RLIMIT_NOFILE, 0)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _serve(connection, answer, max_cpu_s)


def _serve(connection: socket.socket, answer: Answer, max_cpu_s: float) -> None:
    _send(connection, READY, "")
    while (body := _receive(connection)) is not None:
        _allow_cpu(max_cpu_s)
        try:
            kind, text = answer(body)
        except MemoryError:
            kind, text = OUT_OF_MEMORY, ""
        del body
        try:
            _send(connection, kind, text)
        except MemoryError:
            kind = OUT_OF_MEMORY
            _send(connection, kind, "")
        if kind == OUT_OF_MEMORY:
            return


def _receive(connection: socket.socket) -> bytearray | None:
    """Return the next request, None at the end."""
    head = _receive_exactly(connection, 8)
    return None if head is None else _receive_exactly(connection, int.from_bytes(head, "little"))


def _receive_exactly(connection: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        num_read = connection.recv_into(view)
        if not num_read:
            return None
        view = view[num_read:]
    return data


def _send(connection: socket.socket, kind: bytes, text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    head = kind + len(data).to_bytes(8, "little")
    connection.sendall(head + data if len(data) < _SENT_AT_ONCE else head)
    if len(data) >= _SENT_AT_ONCE:
        connection.sendall(data)


def _allow_cpu(seconds: float) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    limit = math.ceil(usage.ru_utime + usage.ru_stime + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _limit(kind: int, value: int) -> None:
    # Some systems know a limit by name only; a lower one that is set already stays.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(kind, (value, value))
