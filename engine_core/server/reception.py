"""How frontends' messages are received: for a bounded time per round, dropping peers that send too much."""

from __future__ import annotations

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.errors import ProtocolError
from splitserve.engine_core.ipc.transport import NO_DESCRIPTOR, BoundRouter, Received
from splitserve.engine_core.server.frontend_handler import FrontendHandler
from splitserve.engine_core.server.frontends import FrontendTable
from splitserve.engine_core.server.inbox import STRANGER_BOUND, Inbox

# Per round: signals, worker outputs and the next step wait no longer than this for frontends' messages, plus
# the one that is being handled.
SERVE_S = 0.01
# libzmq's queue is unbounded, so it is drained first. That costs microseconds per message, whatever its size;
# it takes long only if a peer floods the engine, and then only until the inbox is full.
RECEIVE_S = 0.05
OLD_PEER = ProtocolError("the peer uses a ZMTP version older than 3.0")


class Reception:
    """Moves messages from the frontends' socket to their handler; owned by the busy loop's thread.

    Args:
        router: the frontends' socket.
        handler: takes the messages.
        table: knows which peers are frontends.
        clock: for the time limit.
        inbox: for messages that have to wait.
    """

    def __init__(
        self, router: BoundRouter, handler: FrontendHandler, table: FrontendTable, clock: Clock, inbox: Inbox
    ) -> None:
        self._router = router
        self._handler = handler
        self._table = table
        self._clock = clock
        self._inbox = inbox
        self._num_of_old_peers = 0

    @property
    def has_messages(self) -> bool:
        """Whether messages had to wait for the next round."""
        return bool(self._inbox)

    def run(self) -> None:
        """Handle as many messages as there is time for, at least one if there is any."""
        now_s = self._clock.monotonic()
        self._receive(now_s)
        end_s = self._clock.monotonic() + SERVE_S
        while (message := self._inbox.take()) is not None:
            self._handler.on_frame(message.identity, message.frame)
            if message.identity in self._table:
                self._router.connections.greet(message.descriptor, message.identity, now_s)
            if self._clock.monotonic() >= end_s:
                return

    def look_after(self) -> bool:
        """Refuse connections beyond the limit, and close those whose peers do not say hello.

        Returns:
            Whether any connections were closed, by either side.
        """
        return self._router.look_after(self._clock.monotonic(), self._table.__contains__)

    def next_due_s(self) -> float:
        """Return the time by which look_after() has to be called again; inf when nothing is due."""
        return self._router.connections.next_due_s()

    def _receive(self, now_s: float) -> None:
        for message in self._router.receive():
            self._accept(message, now_s)
            if self._clock.monotonic() - now_s >= RECEIVE_S:
                return

    def _accept(self, message: Received, now_s: float) -> None:
        connections = self._router.connections
        if connections.table.is_ending(message.descriptor):
            return
        if message.descriptor == NO_DESCRIPTOR:
            self._reject_old_peer(message.identity, now_s)
            return
        overrun = self._inbox.put(message, is_known=message.identity in self._table)
        if overrun is not None:
            connections.end(overrun.descriptor, now_s)
            self._handler.on_overrun(overrun.identity)

    def _reject_old_peer(self, identity: bytes, now_s: float) -> None:
        self._handler.on_frame(identity, OLD_PEER)
        self._num_of_old_peers += 1
        if self._num_of_old_peers > STRANGER_BOUND.num_messages:
            # It is not known whose they are. Frontends among them reconnect.
            self._num_of_old_peers = 0
            self._router.connections.end_silent(now_s)
