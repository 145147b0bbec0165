"""A peer that speaks ZMTP 3.0 byte by byte, so that it can say what no library would."""

from __future__ import annotations

import contextlib
import socket
import struct

DEADLINE_S = 60.0
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_COMMAND = 4


def frame(body: bytes, *, more: bool = False, flags: int = 0) -> bytes:
    """One frame on the wire."""
    flags |= more
    if len(body) < 256:
        return bytes((flags, len(body))) + body
    return bytes((flags | 2,)) + struct.pack(">Q", len(body)) + body


def command(name: bytes, body: bytes = b"") -> bytes:
    """One command on the wire."""
    return frame(bytes((len(name),)) + name + body, flags=_COMMAND)


def ready(identity: bytes) -> bytes:
    """The command that ends the handshake of the NULL mechanism."""
    pairs = ((b"Socket-Type", b"DEALER"), (b"Identity", identity))
    return command(
        b"READY",
        b"".join(bytes((len(name),)) + name + struct.pack(">I", len(value)) + value for name, value in pairs),
    )


PING = command(b"PING", bytes(2))


def connect(address: str) -> socket.socket:
    """Connect to ipc://PATH or tcp://HOST:PORT without a word."""
    kind, _, place = address.partition("://")
    if kind == "ipc":
        peer = socket.socket(socket.AF_UNIX)
        # With a time limit it would fail, not wait, while the engine has others to accept.
        peer.connect(place)
        peer.settimeout(DEADLINE_S)
        return peer
    host, _, port = place.rpartition(":")
    return socket.create_connection((host, int(port)), DEADLINE_S)


def shake_hands(peer: socket.socket, identity: bytes) -> None:
    """Go through the handshake."""
    peer.sendall(GREETING + ready(identity))
    num_left = len(GREETING)
    while num_left:
        data = peer.recv(num_left)
        assert data, "the engine has ended the connection"
        num_left -= len(data)
    # Its READY follows.
    assert peer.recv(65536)


def joined(address: str, identity: bytes) -> socket.socket:
    """Connect and go through the handshake."""
    peer = connect(address)
    shake_hands(peer, identity)
    return peer


def reset(peer: socket.socket) -> None:
    """End the connection with what is unread lost, over TCP by a reset."""
    with contextlib.suppress(OSError):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def has_ended(peer: socket.socket) -> bool:
    """Wait until the other side ends the connection; False if it does not."""
    try:
        while peer.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True
