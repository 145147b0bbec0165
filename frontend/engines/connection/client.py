"""The client of one engine-core: opens and aborts sequences, pings, makes calls, and runs the timers.

It connects the socket, which moves frames, with the session, which knows what they mean. Each stream is woken
once for everything that has arrived in one iteration of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec
import zmq

from splitserve.engine_core.errors import EngineUnavailableError, ProtocolError
from splitserve.engine_core.ipc.codec import engine_decoder
from splitserve.engine_core.ipc.curve import ClientKeys
from splitserve.engine_core.ipc.messages import (
    AdaptersChanged,
    AddRequest,
    Call,
    CallResult,
    LogLevelSet,
    Pong,
    StepOutputs,
)
from splitserve.engine_core.process.kill_points import reach
from splitserve.engine_core.process.logs import log_event, set_log_level
from splitserve.frontend.engines.connection.calls import SHUTTING_DOWN, PendingCalls
from splitserve.frontend.engines.connection.engine_socket import EngineSocket
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.connection.session import EngineSession, EngineState

logger = logging.getLogger(__name__)

TICK_S = 0.25


class EngineClient:
    """The connection to one engine; all methods belong to the event loop that called start().

    Attributes:
        on_change: called when the session's state has changed or the engine has restarted.
        protocol_errors: frames that were not a valid message.
        adapters: what the engine told last of its adapters; None if it has none.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        session: EngineSession,
        keys: ClientKeys | None = None,
        *,
        allow_insecure_tcp: bool = False,
    ) -> None:
        """Prepare; start() connects.

        Args:
            context: shared by all engines of the process.
            session: decides what to send and what a reply means.
            keys: CURVE keys for TCP.
            allow_insecure_tcp: permit TCP beyond loopback without keys.
        """
        self.session = session
        self.on_change: Callable[[], None] = _ignore
        self.protocol_errors = 0
        self.adapters: AdaptersChanged | None = None
        self._socket = EngineSocket(context, session.address, keys, allow_insecure_tcp=allow_insecure_tcp)
        self._closed = False
        self._calls = PendingCalls(session.address)
        self._last_state = session.state
        # If the engine restarts between two checks, the state looks unchanged; the epoch does not.
        self._last_epoch = 0
        self._last_num_losses = 0

    def start(self) -> None:
        """Start connecting, however long that takes, and start reading.

        Raises:
            ConfigError: the address needs keys, or libzmq refuses it.
        """
        self._loop = asyncio.get_running_loop()
        self._socket.start(self)
        self._ticker = asyncio.create_task(self._tick_for_ever())

    async def close(self) -> None:
        """Abort open sequences, stop reading and close the socket."""
        if self._closed:
            return
        sequences = list(self.session.sequences)
        self.abort(sequences)
        self._closed = True
        for sequence in sequences:
            sequence.fail(EngineUnavailableError(SHUTTING_DOWN))
        self._ticker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._ticker
        # Long enough for the aborts to be sent, if the engine is there to receive them.
        self._socket.close(linger_ms=100 if self.session.state is not EngineState.LOST else 0)
        self._calls.close()

    def open(self, requests: Sequence[AddRequest], wake: Callable[[], None]) -> list[OpenSequence]:
        """Send the sequences of one client's request, which the engine accepts or rejects as a whole.

        Args:
            requests: one per sequence; this sets their handle and `more`.
            wake: called by the event loop when something has arrived for any of them.

        Raises:
            EngineUnavailableError, OverloadedError: as EngineSession.open(); nothing is sent.
        """
        sequences: list[OpenSequence] = []
        try:
            for num_left, request in zip(range(len(requests) - 1, -1, -1), requests, strict=True):
                handle, more = self.session.next_handle(), num_left > 0
                numbered = msgspec.structs.replace(request, handle=handle, more=more)
                sequences.append(self.session.open(numbered, wake))
        except BaseException:
            self.abort(sequences)
            raise
        self._socket.send(self.session.outbox)
        reach("frontend.request_sent")
        return sequences

    def adopt(self, sequences: Sequence[OpenSequence], requests: Sequence[AddRequest]) -> None:
        """Continue displaced sequences of one client's request, all of them or none.

        Args:
            sequences: in no table.
            requests: one per sequence; this sets their handle and `more`.

        Raises:
            EngineUnavailableError, OverloadedError: as EngineSession.check_room(); nothing is sent.
        """
        self.session.check_room(len(sequences))
        last = len(sequences) - 1
        for i, (sequence, request) in enumerate(zip(sequences, requests, strict=True)):
            handle = self.session.next_handle()
            self.session.adopt(sequence, msgspec.structs.replace(request, handle=handle, more=i < last))
        self._socket.send(self.session.outbox)
        # A stream that has tokens left to write may be handed over to native code before any message comes.
        self._socket.look_again()

    def abort(self, sequences: Iterable[OpenSequence]) -> None:
        """Abort those of the sequences that are still open; does nothing after close()."""
        if self._closed:
            return
        self.session.abort([sequence.handle for sequence in sequences])
        self._socket.send(self.session.outbox)

    async def ping(self, timeout_s: float) -> Pong:
        """Make a round trip through the engine's busy loop.

        Raises:
            EngineUnavailableError: no reply in time.
        """
        answer = await self._ask(lambda: self.session.ping(self._loop.time()), timeout_s)
        assert isinstance(answer, Pong)
        return answer

    async def call(self, call: Call, timeout_s: float) -> CallResult:
        """Make a utility call; its call_id is set here. The result may say that its arguments are refused.

        Raises:
            EngineUnavailableError: no reply in time, or the engine is not ready for calls.
        """
        answer = await self._ask(lambda: self.session.call(call), timeout_s)
        assert isinstance(answer, CallResult)
        if not answer.ok and answer.status >= 500:
            raise EngineUnavailableError(answer.message)
        return answer

    def on_connected(self, now_s: float) -> None:
        """Start the handshake: the session sends a Hello."""
        self.session.connected(now_s)

    def on_disconnected(self, now_s: float) -> None:
        """Give the open sequences back, if there was an engine at all."""
        self.session.disconnected(now_s)

    def on_message(self, frames: list[bytes], now_s: float) -> None:
        """Process one message; invalid ones are counted and dropped."""
        try:
            if len(frames) != 1:
                raise ProtocolError(f"expected a message of one frame, got {len(frames)}")
            message = engine_decoder.decode(frames[0])
            self.session.receive(message, now_s)
        except ProtocolError as error:
            self.session.garbled()
            self.protocol_errors += 1
            if self.protocol_errors == 1:
                engine = self.session.address
                log_event(logger, logging.WARNING, "invalid message", engine=engine, detail=str(error))
            return
        if isinstance(message, StepOutputs):
            reach("frontend.outputs_received")
        elif isinstance(message, AdaptersChanged):
            self.adapters = message
        elif isinstance(message, LogLevelSet):
            set_log_level(message.level)
        self._calls.settle(message)

    def on_wakeup(self) -> None:
        """Notify the streams of what has arrived, a bounded number at a time, and send what is queued."""
        if self.session.sequences.wake_up(time.monotonic()):
            self._socket.look_again()
        self._socket.send(self.session.outbox)
        if self.session.num_losses != self._last_num_losses:
            self._last_num_losses = self.session.num_losses
            self._calls.fail(f"the engine at {self.session.address} was lost")
        self._tell_change()

    async def _ask(self, send: Callable[[], int], timeout_s: float) -> Pong | CallResult:
        self._calls.check_room()
        number = send()
        self._socket.send(self.session.outbox)
        return await self._calls.answer(number, timeout_s)

    async def _tick_for_ever(self) -> None:
        while True:
            now_s = self._loop.time()
            self.session.tick(now_s)
            self._socket.tick(now_s)
            self.on_wakeup()
            await asyncio.sleep(TICK_S)

    def _tell_change(self) -> None:
        state, epoch = self.session.state, self.session.ready.epoch if self.session.ready else 0
        if state is self._last_state and epoch == self._last_epoch:
            return
        before, engine = self._last_state.value, self.session.address
        log_event(logger, logging.INFO, "engine state", engine=engine, before=before, now=state.value)
        self._last_state, self._last_epoch = state, epoch
        self.on_change()


def _ignore() -> None:
    pass
