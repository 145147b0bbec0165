"""When is a client gone whose machine cannot say so? The kernel asks it, and waits only so long."""

from __future__ import annotations

import socket

# Without anything to send: a request may wait long for its first token.
ASK_AFTER_S = 15
ASK_EVERY_S = 5


def end_dead_connections(listener: socket.socket, patience_s: float) -> None:
    """Let the kernel end accepted connections whose client acknowledges nothing.

    Args:
        listener: what is set here is inherited by every connection that it accepts.
        patience_s: how long data may stay unacknowledged, or unsent because the client does not read.
    """
    if listener.family == socket.AF_UNIX:
        return
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_USER_TIMEOUT", round(patience_s * 1000)),
        ("TCP_KEEPIDLE", ASK_AFTER_S),
        ("TCP_KEEPINTVL", ASK_EVERY_S),
    ):
        # Not every system has them.
        if hasattr(socket, option):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
