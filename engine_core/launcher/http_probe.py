"""How GET /ready is sent to our own listening socket without blocking: one connection per request."""

from __future__ import annotations

import re
import socket

# 401 and 403: the server is up, and this path requires a key.
READY_STATUSES = frozenset((200, 401, 403))
_MAX_ANSWER_BYTES = 65536


class HttpProbe:
    """One request; poll `fileno()` for input and call on_readable() until it does not return None."""

    def __init__(self, listener: socket.socket) -> None:
        """Connect and send the request.

        Raises:
            OSError: nobody accepts connections there.
        """
        self._socket = socket.socket(listener.family, socket.SOCK_STREAM)
        self._answer = b""
        try:
            # A local listening socket accepts a connection at once, unless its backlog is full.
            self._socket.settimeout(1.0)
            self._socket.connect(listener.getsockname())
            self._socket.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            self._socket.setblocking(False)
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor to poll for input."""
        return self._socket.fileno()

    def on_readable(self) -> bool | None:
        """Return whether the server is ready; None while the response is not complete."""
        try:
            data = self._socket.recv(4096)
        except BlockingIOError:
            return None
        except OSError:
            return False
        self._answer += data
        match = re.match(rb"HTTP/1\.[01] (\d{3})", self._answer)
        if match is not None:
            return int(match[1]) in READY_STATUSES
        return None if data and len(self._answer) < _MAX_ANSWER_BYTES else False

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
