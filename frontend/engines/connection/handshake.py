"""Failed handshakes with an engine: what to tell the operator, and when to reconnect.

libzmq gives up on an address for good when the engine refuses our key, and retries 50 times a second when the
keys do not match; both are wrong for a frontend, whose operator fixes the keys and expects it to recover.
"""

from __future__ import annotations

import logging

import zmq

from splitserve.engine_core.process.logs import log_event

logger = logging.getLogger(__name__)

RETRY_S = 1.0
FAILED_EVENTS = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class HandshakeWatch:
    """The outcome of the last handshake with one engine; no I/O, owned by one event loop."""

    def __init__(self, address: str, *, has_keys: bool) -> None:
        self._address = address
        self._has_keys = has_keys
        self._told = False
        self._retry_at_s: float | None = None

    def succeeded(self) -> None:
        """The connection is up: the next failure is logged again."""
        self._told = False
        self._retry_at_s = None

    def failed(self, event: int, now_s: float) -> bool:
        """Log the first of a series of failures.

        Returns:
            Whether the socket must be disconnected; False if it is already.
        """
        first, self._retry_at_s = self._retry_at_s is None, now_s + RETRY_S
        if not self._told:
            self._told = True
            engine, reason = self._address, self._reason(event)
            log_event(logger, logging.WARNING, "no connection, still trying", engine=engine, reason=reason)
        return first

    def take_retry(self, now_s: float) -> bool:
        """Return whether it is time to reconnect; True once per failure."""
        if self._retry_at_s is None or now_s < self._retry_at_s:
            return False
        self._retry_at_s = None
        return True

    def _reason(self, event: int) -> str:
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return "it does not know the key in frontend.key; its --keys directory must hold a copy"
        if self._address.startswith("tcp://"):
            given = "its own engine.key may differ from ours" if self._has_keys else "it may want --keys"
            return f"the handshake failed; {given}"
        return "the handshake failed"
