"""The socket to one engine-core on the event loop: when it is read, written and reconnected.

The socket's file descriptor is watched by the loop itself; one wake-up drains everything that has arrived.
(zmq.asyncio makes a future and polls for each message: measured, 11 us per message that comes in a burst and
47 us for one that comes alone, against 1 us and 19 us this way.) libzmq signals a change of state on that
descriptor, not a level, so after each send the socket's events are checked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from splitserve.engine_core.ipc.codec import encode
from splitserve.engine_core.ipc.curve import ClientKeys
from splitserve.engine_core.ipc.messages import FrontendMessage
from splitserve.engine_core.ipc.transport import CLIENT_HWM, MAX_MESSAGE_BYTES, connect_engine
from splitserve.frontend.engines.connection.handshake import FAILED_EVENTS, HandshakeWatch

# Frames read in one go before other tasks get to run.
MAX_FRAMES_PER_WAKEUP = 64
# The same for their size: the logprobs of a step may be 400 KB, which takes some milliseconds.
MAX_BYTES_PER_WAKEUP = 512 * 1024
# A plain number: the flags of an enum cost a call in Python for each operation.
_POLLIN = int(zmq.POLLIN)
_MONITORED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | FAILED_EVENTS


class SocketOwner(Protocol):
    """The owner that a socket calls back, always from the event loop."""

    def on_connected(self, now_s: float) -> None:
        """The socket is connected (again)."""

    def on_disconnected(self, now_s: float) -> None:
        """The connection is lost; everything received over it has been passed on."""

    def on_message(self, frames: list[bytes], now_s: float) -> None:
        """Process one message."""

    def on_wakeup(self) -> None:
        """Act on the messages passed on since the last call; there may be none."""


class EngineSocket:
    """A DEALER socket to one engine and its connection monitor; belongs to one event loop."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        keys: ClientKeys | None = None,
        *,
        allow_insecure_tcp: bool = False,
    ) -> None:
        """Prepare; start() connects.

        Args:
            context: shared by all engines of the process.
            address: of the engine.
            keys: CURVE keys for TCP.
            allow_insecure_tcp: permit TCP beyond loopback without keys.
        """
        self._context = context
        self._address = address
        self._keys = keys
        self._allow_insecure_tcp = allow_insecure_tcp
        self._handshake = HandshakeWatch(address, has_keys=keys is not None)
        self._again: asyncio.Handle | None = None

    def start(self, owner: SocketOwner) -> None:
        """Start connecting, however long that takes, and start reading.

        Raises:
            ConfigError: the address needs keys, or libzmq refuses it.
        """
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        # Random bytes: the engine does not reassign an identity while its previous owner may be alive.
        self._socket = connect_engine(
            self._context,
            self._address,
            b"f" + secrets.token_bytes(8),
            self._keys,
            allow_insecure_tcp=self._allow_insecure_tcp,
        )
        self._monitor = self._socket.get_monitor_socket(_MONITORED)
        self._loop.add_reader(self._socket.fileno(), self._on_readable)
        self._loop.add_reader(self._monitor.fileno(), self._on_monitor)
        # libzmq signals only once its reader has found the socket empty.
        self._on_monitor()
        self._on_readable()

    def tick(self, now_s: float) -> None:
        """Reconnect some time after a failed handshake; call it a few times a second."""
        if self._handshake.take_retry(now_s):
            self._socket.connect(self._address)

    def send(self, outbox: deque[FrontendMessage]) -> None:
        """Send what is queued, from the left; messages stay queued while the socket is full."""
        tried = bool(outbox)
        while outbox:
            try:
                self._socket.send(encode(outbox[0]), zmq.NOBLOCK)
            except zmq.Again:
                break
            outbox.popleft()
        # A failed send also checks the socket and consumes its signal.
        if tried and _has_input(self._socket):
            self.look_again()

    def look_again(self) -> None:
        """Read, and call on_wakeup(), in the loop's next iteration."""
        if self._again is None:
            self._again = self._loop.call_soon(self._on_readable)

    def close(self, linger_ms: int) -> None:
        """Stop reading and close; unsent messages have `linger_ms` milliseconds to leave."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_reader(self._monitor.fileno())
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=linger_ms)

    def _on_monitor(self) -> None:
        now_s = self._loop.time()
        while _has_input(self._monitor):
            event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))["event"]
            if event == zmq.EVENT_DISCONNECTED:
                # Its last messages are still wanted; there cannot be more than the receive queue holds.
                self._drain(CLIENT_HWM, MAX_MESSAGE_BYTES * CLIENT_HWM)
                self._owner.on_disconnected(now_s)
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._handshake.succeeded()
                self._owner.on_connected(now_s)
            elif self._handshake.failed(event, now_s):
                with contextlib.suppress(zmq.ZMQError):
                    self._socket.disconnect(self._address)
        self._owner.on_wakeup()

    def _on_readable(self) -> None:
        self._again = None
        self._drain()
        self._owner.on_wakeup()

    def _drain(self, max_frames: int = MAX_FRAMES_PER_WAKEUP, max_bytes: int = MAX_BYTES_PER_WAKEUP) -> None:
        """Read what has arrived, a bounded amount at a time, so that other tasks are not starved."""
        now_s = self._loop.time()
        for _ in range(max_frames):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._owner.on_message(frames, now_s)
            max_bytes -= sum(map(len, frames))
            if max_bytes <= 0:
                self.look_again()
                break
            # Checked first: a recv on an empty socket raises, which costs four times as much.
            if not _has_input(self._socket):
                break
        else:
            self.look_again()


def _has_input(socket: zmq.Socket[bytes]) -> bool:
    return int(socket.getsockopt(zmq.EVENTS)) & _POLLIN != 0
