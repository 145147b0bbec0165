"""How `splitserve serve` finds out that requests can be served: it asks the engine, then a frontend.

stage      sends                 until
engine     Hello                 Ready
frontends  Ping                  all frontends have connected to the engine
api        GET /ready            the status is 200, or says that a key is needed; skipped with TLS
done       nothing
"""

from __future__ import annotations

import enum
import os
import socket
from collections.abc import Callable, Sequence

import zmq

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.errors import ProtocolError
from splitserve.engine_core.ipc.codec import encode, engine_decoder
from splitserve.engine_core.ipc.messages import (
    EngineMessage,
    FrontendMessage,
    Hello,
    Loading,
    Ping,
    Pong,
    Ready,
)
from splitserve.engine_core.ipc.transport import connect_engine
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION
from splitserve.engine_core.launcher.http_probe import HttpProbe
from splitserve.engine_core.process.version import software_version

ASK_INTERVAL_S = 0.1


class ProbeStage(enum.Enum):
    """See the table above."""

    ENGINE = 0
    FRONTENDS = 1
    API = 2
    DONE = 3


class ReadinessProbe:
    """Watches one engine and its frontends until they are ready; polled by the launcher's loop.

    Args:
        address: of the engine.
        num_frontends: how many have to connect to it.
        listener: the frontends' socket; None skips the last stage.
        on_engine_ready: called with the engine's Ready, each time it becomes ready.
    """

    def __init__(
        self,
        address: str,
        num_frontends: int,
        listener: socket.socket | None,
        clock: Clock,
        on_engine_ready: Callable[[Ready], None],
    ) -> None:
        self._clock = clock
        self._num_frontends = num_frontends
        self._listener = listener
        self._on_engine_ready = on_engine_ready
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: zmq.Socket[bytes] = connect_engine(self._context, address, b"serve-" + os.urandom(8))
        self._http: HttpProbe | None = None
        self._next_ask_s = clock.monotonic()
        self.stage = ProbeStage.ENGINE
        self.engine: Ready | None = None

    @property
    def sources(self) -> Sequence[zmq.Socket | int]:
        """The sockets and descriptors to poll for input."""
        return (self._socket, self._http.fileno()) if self._http is not None else (self._socket,)

    def next_due_s(self) -> float:
        """Return when to call on_time() next."""
        return self._next_ask_s

    def on_time(self) -> None:
        """Ask again if it is time; there may be no one to answer yet."""
        now_s = self._clock.monotonic()
        if now_s < self._next_ask_s:
            return
        self._next_ask_s = now_s + ASK_INTERVAL_S
        match self.stage:
            case ProbeStage.ENGINE:
                self._send(Hello(PROTOCOL_VERSION, "splitserve-serve", software_version()))
            case ProbeStage.FRONTENDS:
                self._send(Ping(nonce=0))
            case ProbeStage.API:
                self._ask_api()
            case ProbeStage.DONE:
                pass

    def on_readable(self) -> None:
        """Handle the responses that have arrived."""
        while self._socket.poll(0):
            try:
                self._take(engine_decoder.decode(self._socket.recv()))
            except ProtocolError:
                continue
        if self._http is not None and (ready := self._http.on_readable()) is not None:
            self._end_http()
            if ready:
                self.stage = ProbeStage.DONE

    def _take(self, message: EngineMessage) -> None:
        match message:
            case Ready() if self.stage is ProbeStage.ENGINE:
                self.engine, self.stage = message, ProbeStage.FRONTENDS
                self._next_ask_s = self._clock.monotonic()
                self._on_engine_ready(message)
            case Loading():
                self.stage = ProbeStage.ENGINE
            case Pong(epoch=epoch, stats=stats) if (
                self.stage is ProbeStage.FRONTENDS and self.engine is not None
            ):
                if epoch != self.engine.epoch:
                    self.stage = ProbeStage.ENGINE
                elif stats.num_frontends > self._num_frontends:
                    # This probe counts as one of them.
                    self.stage = ProbeStage.API if self._listener is not None else ProbeStage.DONE
            case _:
                pass

    def _ask_api(self) -> None:
        if self._http is None and self._listener is not None:
            try:
                self._http = HttpProbe(self._listener)
            except OSError:
                return

    def _send(self, message: FrontendMessage) -> None:
        # While there is no engine, messages queue up; one that finds the queue full is sent again later.
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return

    def _end_http(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def close(self) -> None:
        """Disconnect from the engine."""
        self._end_http()
        self._socket.close(linger=0)
        self._context.term()
