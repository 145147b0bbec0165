"""One open WebSocket: whole messages of text in and out, within limits of size, number and time.

what the client does                                  what happens
sends a message larger than --max-body-bytes          closed, 1009
sends one more slowly than --body-timeout             closed, 1008
sends one while many bodies arrive at this process    closed, 1013: see frontend.http.body_budget
sends more than MAX_WAITING before they are taken     closed, 1008
sends no text                                         closed, 1003
breaks the protocol                                   closed, 1002 or 1007
pings                                                 pong
pings MAX_PINGS times while it does not read          closed, 1008
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from splitserve.frontend.http.body_budget import ArrivingBody, BodyBudget
from splitserve.frontend.http.connection.takeover import TakenConnection
from splitserve.frontend.http.errors import HttpError

# As many as there may be pipelined requests of HTTP.
MAX_WAITING = 8
# Whose pongs nobody reads.
MAX_PINGS = 64


class Socket:
    """Owns one connection; see frontend.http.connection.takeover.

    Attributes:
        draining: the server shuts down.
        listener: called after `paused` or `lost` has changed.
    """

    def __init__(
        self, protocol: ServerProtocol, budget: BodyBudget, address: str, body_timeout_s: float
    ) -> None:
        """Prepare; open() comes next.

        Args:
            protocol: after the handshake.
            budget: of the process.
            address: of the client.
            body_timeout_s: how long a message may take to arrive.
        """
        self.draining = False
        self.listener: Callable[[], None] = _nothing
        self._protocol = protocol
        self._budget = budget
        self._arriving = ArrivingBody(address, self._give_up)
        self._body_timeout_s = body_timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._num_pings = 0
        self._parts: list[bytes] = []
        self._messages: deque[bytes] = deque()
        self._news = asyncio.Event()

    def open(self, connection: TakenConnection, handshake: bytes) -> None:
        """Begin to use the connection, with the bytes that accept the WebSocket."""
        self._connection = connection
        connection.write(handshake)

    @property
    def lost(self) -> bool:
        """Whether the client has closed it, or the connection has ended."""
        return self._connection.lost or self._protocol.state is not State.OPEN

    @property
    def paused(self) -> bool:
        """Whether the client does not read."""
        return self._connection.paused

    async def next_message(self) -> bytes | None:
        """Return the next message; None if none comes any more: it is lost, or the server shuts down."""
        while not (self._messages or self.lost or self.draining):
            await self._change()
        if self.lost or self.draining:
            return None
        message = self._messages.popleft()
        if not (self._messages or self._parts or self._timer):
            self._budget.leave(self._arriving)
        return message

    async def wait_lost(self) -> None:
        """Return when nothing can be sent or received any more."""
        while not self.lost:
            await self._change()

    async def has_read(self, wait_s: float) -> bool:
        """Return whether the client reads what it is sent, or begins to within a time."""
        try:
            async with asyncio.timeout(wait_s):
                while self.paused and not self.lost:
                    await self._change()
        except TimeoutError:
            return False
        return True

    def send(self, text: bytes) -> None:
        """Send a message."""
        if not self.lost:
            self._protocol.send_text(text)
            self._flush()

    def ping(self) -> None:
        """Send a ping: it tells whoever is on the way that the connection lives."""
        if not self.lost:
            self._protocol.send_ping(b"")
            self._flush()

    async def close(self, code: int, wait_s: float) -> None:
        """Close the connection, and return when it is.

        Args:
            code: of the close frame, if the client has sent none.
            wait_s: how long the client may take to read what was sent, and to close its side.
        """
        self._fail(code)
        try:
            async with asyncio.timeout(wait_s):
                while not self._connection.lost:
                    await self._change()
        except TimeoutError:
            self._connection.abort()
        finally:
            self._stop_timer()
            self._budget.leave(self._arriving)

    def on_data(self, data: bytes) -> None:
        """Take what the client has sent."""
        try:
            self._budget.add(self._arriving, len(data))
        except HttpError:
            self._give_up()
            return
        self._protocol.receive_data(data)
        events = self._protocol.events_received()
        for frame in events:
            if isinstance(frame, Frame):
                self._take(frame)
        if not events or self._parts:
            self._start_timer()
        else:
            # What has come of the next message is not counted: less than one read.
            self._stop_timer()
            if not self._messages:
                self._budget.leave(self._arriving)
        self._flush()

    def on_change(self) -> None:
        """The client does not read, reads again, or is gone."""
        self._num_pings = 0
        self._news.set()
        self.listener()

    def on_drain(self) -> None:
        """The server shuts down: next_message() returns none any more."""
        self.draining = True
        self._news.set()

    async def _change(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.BINARY:
            self._fail(CloseCode.UNSUPPORTED_DATA)
        if frame.opcode is Opcode.PING and self.paused:
            self._num_pings += 1
            if self._num_pings > MAX_PINGS:
                self._fail(CloseCode.POLICY_VIOLATION)
        if frame.opcode not in (Opcode.TEXT, Opcode.CONT):
            return
        self._parts.append(bytes(frame.data))
        if not frame.fin:
            return
        self._messages.append(b"".join(self._parts))
        self._parts.clear()
        self._news.set()
        if len(self._messages) > MAX_WAITING:
            self._fail(CloseCode.POLICY_VIOLATION)

    def _fail(self, code: int) -> None:
        """Send a close frame, once; what the client sends afterwards counts no more."""
        if self._protocol.state is State.OPEN:
            self._protocol.fail(code)
        self._flush()

    def _flush(self) -> None:
        """Send what the protocol has to say; a connection that it has ended is closed."""
        data = self._protocol.data_to_send()
        if any(data):
            self._connection.write(b"".join(data))
        if self._protocol.state is not State.OPEN:
            self._connection.close()
            self.on_change()

    def _give_up(self) -> None:
        self._fail(CloseCode.TRY_AGAIN_LATER)

    def _start_timer(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._body_timeout_s, self._fail, CloseCode.POLICY_VIOLATION)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _nothing() -> None:
    """Do nothing: the default listener."""
