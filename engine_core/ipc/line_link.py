"""How do a process and its child exchange messages? As lines of JSON over a socket pair."""

from __future__ import annotations

import socket
import threading
from typing import Generic, TypeVar

import msgspec

from splitserve.engine_core.ipc.wire import Wire

M = TypeVar("M")

_CHUNK_BYTES = 65536
# Far more than the command lines of the largest number of ranks need.
_MAX_LINE_BYTES = 4 * 2**20


class LineLink(Generic[M]):
    """One end of the pair; both processes are ours, so a message that does not decode is a bug and raises.

    send() may be called by any thread, receive() by one.

    Attributes:
        is_open: whether the other end is still open.
    """

    def __init__(self, sock: socket.socket, expected: object) -> None:
        """Args: sock is this end; expected is the union of messages that arrive here."""
        self._socket = sock
        self._decoder: msgspec.json.Decoder[M] = msgspec.json.Decoder(expected)
        self._lock = threading.Lock()
        self._partial = b""
        self.is_open = True

    def fileno(self) -> int:
        """Return the descriptor to poll; it stays readable once the other end is closed."""
        return self._socket.fileno()

    def send(self, message: Wire) -> None:
        """Send one message; nothing happens if the other end is gone."""
        try:
            with self._lock:
                self._socket.sendall(msgspec.json.encode(message) + b"\n")
        except OSError:
            self.is_open = False

    def receive(self, *, wait: bool) -> list[M]:
        """Return the messages that have arrived.

        Args:
            wait: wait for one, or for the other end to close.
        """
        messages: list[M] = []
        while self.is_open and not messages:
            try:
                data = self._socket.recv(_CHUNK_BYTES, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self.is_open = bool(data)
            messages = [self._decoder.decode(line) for line in self._lines(data)]
        return messages

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
        self.is_open = False

    def _lines(self, data: bytes) -> list[bytes]:
        *complete, self._partial = (self._partial + data).split(b"\n")
        assert len(self._partial) <= _MAX_LINE_BYTES, "no message is that long"
        return complete
