"""One engine-core on the event loop: moves frames between its socket and its EngineSession.

The socket's file descriptor is watched by the loop itself; one wake-up drains everything that has arrived,
and each stream is woken once for all of it. (zmq.asyncio makes a future and polls for each message: measured,
11 us per message that comes in a burst and 47 us for one that comes alone, against 1 us and 19 us this way.)
libzmq reports a change of state, not a level, on that descriptor, so after each send the socket's events are
looked at again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from splitserve.engine_core.errors import EngineUnavailableError, ProtocolError
from splitserve.engine_core.ipc.codec import encode, engine_decoder
from splitserve.engine_core.ipc.curve import ClientKeys
from splitserve.engine_core.ipc.messages import AddRequest, CallKind, CallResult, Pong
from splitserve.engine_core.ipc.transport import CLIENT_HWM, MAX_MESSAGE_BYTES, connect_engine
from splitserve.frontend.engines.connection.calls import SHUTTING_DOWN, PendingCalls
from splitserve.frontend.engines.connection.handshake import FAILED_EVENTS, HandshakeWatch
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.connection.session import EngineSession, EngineState

logger = logging.getLogger(__name__)

TICK_S = 0.25
# Frames taken in one go before other tasks get their turn.
MAX_FRAMES_PER_WAKEUP = 64
# The same for what they hold: logprobs of a step may be 400 KB, which take some milliseconds.
MAX_BYTES_PER_WAKEUP = 512 * 1024
# A plain number: the flags of an enum cost a call in Python for each operation.
_POLLIN = int(zmq.POLLIN)
_MONITORED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | FAILED_EVENTS


class EngineClient:
    """The connection to one engine; all methods belong to the event loop that called start().

    Attributes:
        on_change: called when the session has changed its state, or its engine has restarted.
        protocol_errors: frames that were not a valid message.
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
            session: decides what to send and what an answer means.
            keys: CURVE keys for TCP.
            allow_insecure_tcp: permit TCP beyond loopback without keys.
        """
        self.session = session
        self.on_change: Callable[[], None] = _ignore
        self.protocol_errors = 0
        self._context = context
        self._keys = keys
        self._allow_insecure_tcp = allow_insecure_tcp
        self._handshake = HandshakeWatch(session.address, has_keys=keys is not None)
        self._closed = False
        self._calls = PendingCalls(session.address)
        self._last_state = session.state
        # The engine may restart between two checks of the state, which is then the same.
        self._last_epoch = 0
        self._again: asyncio.Handle | None = None

    def start(self) -> None:
        """Connect, however long that takes, and start reading.

        Raises:
            ConfigError: the address needs keys, or libzmq refuses it.
        """
        self._loop = asyncio.get_running_loop()
        # Random bytes: the engine does not reassign an identity while its previous owner may be alive.
        self._socket = connect_engine(
            self._context,
            self.session.address,
            b"f" + secrets.token_bytes(8),
            self._keys,
            allow_insecure_tcp=self._allow_insecure_tcp,
        )
        self._monitor = self._socket.get_monitor_socket(_MONITORED)
        self._loop.add_reader(self._socket.fileno(), self._on_readable)
        self._loop.add_reader(self._monitor.fileno(), self._on_monitor)
        # libzmq signals only to a reader that has found its socket empty.
        self._on_monitor()
        self._on_readable()
        self._ticker = asyncio.create_task(self._tick_for_ever())

    async def close(self) -> None:
        """Abort what is open, stop reading and close the socket."""
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
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_reader(self._monitor.fileno())
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        # Long enough for the aborts to be sent, if the engine is there to receive them.
        self._socket.close(linger=100 if self.session.state is not EngineState.LOST else 0)
        self._calls.close()

    def open(self, requests: Sequence[AddRequest], wake: Callable[[], None]) -> list[OpenSequence]:
        """Send the sequences of one client's request, which the engine takes or refuses together.

        Args:
            requests: their handles and `more` are given here.
            wake: called by the event loop when something has come for any of them.

        Raises:
            EngineUnavailableError, OverloadedError: as EngineSession.open(); none is sent.
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
        self._flush()
        return sequences

    def abort(self, sequences: Iterable[OpenSequence]) -> None:
        """End sequences on the engine at once, if they are still open; nothing happens after close()."""
        if self._closed:
            return
        self.session.abort([sequence.request.handle for sequence in sequences])
        self._flush()

    async def ping(self, timeout_s: float) -> Pong:
        """Make a round trip through the engine's busy loop.

        Raises:
            EngineUnavailableError: no answer in time.
        """
        answer = await self._ask(lambda: self.session.ping(self._loop.time()), timeout_s)
        assert isinstance(answer, Pong)
        return answer

    async def call(
        self, kind: CallKind, timeout_s: float, request_ids: Sequence[str] = (), tenant: str = ""
    ) -> CallResult:
        """Make a utility call; ids and tenant are for EXPLAIN_REQUESTS.

        Raises:
            EngineUnavailableError: no answer in time.
        """
        answer = await self._ask(lambda: self.session.call(kind, request_ids, tenant), timeout_s)
        assert isinstance(answer, CallResult)
        return answer

    async def _ask(self, send: Callable[[], int], timeout_s: float) -> Pong | CallResult:
        self._calls.check_room()
        number = send()
        self._flush()
        return await self._calls.answer(number, timeout_s)

    async def _tick_for_ever(self) -> None:
        while True:
            now_s = self._loop.time()
            self.session.tick(now_s)
            if self._handshake.take_retry(now_s):
                self._socket.connect(self.session.address)
            self._flush()
            self._wake_up()
            self._tell_change()
            await asyncio.sleep(TICK_S)

    def _on_monitor(self) -> None:
        now_s = self._loop.time()
        while _has_input(self._monitor):
            event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))["event"]
            if event == zmq.EVENT_DISCONNECTED:
                # What it sent last is still wanted; it cannot be more than the receive queue holds.
                self._drain(CLIENT_HWM, MAX_MESSAGE_BYTES * CLIENT_HWM)
                self.session.disconnected(now_s)
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._handshake.succeeded()
                self.session.connected(now_s)
            elif self._handshake.failed(event, now_s):
                with contextlib.suppress(zmq.ZMQError):
                    self._socket.disconnect(self.session.address)
        self._flush()
        self._wake_up()
        self._tell_change()

    def _on_readable(self) -> None:
        self._again = None
        self._drain()
        self._wake_up()
        self._flush()
        self._tell_change()

    def _drain(self, max_frames: int = MAX_FRAMES_PER_WAKEUP, max_bytes: int = MAX_BYTES_PER_WAKEUP) -> None:
        """Read what has arrived, a bounded part at a time, so that other tasks are not starved."""
        now_s = self._loop.time()
        for _ in range(max_frames):
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._receive(parts, now_s)
            max_bytes -= sum(map(len, parts))
            if max_bytes <= 0:
                self._look_again()
                break
            # Checked first: a recv that finds nothing raises, which costs four times as much.
            if not _has_input(self._socket):
                break
        else:
            self._look_again()

    def _wake_up(self) -> None:
        """Pass on what has arrived to the streams, a bounded part at a time."""
        if self.session.sequences.wake_up(time.monotonic()):
            self._look_again()

    def _receive(self, parts: list[bytes], now_s: float) -> None:
        try:
            if len(parts) != 1:
                raise ProtocolError(f"a message has one frame, this one has {len(parts)}")
            message = engine_decoder.decode(parts[0])
            self.session.receive(message, now_s)
        except ProtocolError as error:
            self.protocol_errors += 1
            if self.protocol_errors == 1:
                logger.warning("engine %s sent a message that is not valid: %s", self.session.address, error)
            return
        self._calls.settle(message)

    def _flush(self) -> None:
        """Send what the session has queued; what finds the socket full waits for the next wake-up or tick."""
        outbox = self.session.outbox
        tried = bool(outbox)
        while outbox:
            try:
                self._socket.send(encode(outbox[0]), zmq.NOBLOCK)
            except zmq.Again:
                break
            outbox.popleft()
        # A send that fails also checks the socket, and consumes its signal.
        if tried and _has_input(self._socket):
            self._look_again()

    def _look_again(self) -> None:
        if self._again is None:
            self._again = self._loop.call_soon(self._on_readable)

    def _tell_change(self) -> None:
        state, epoch = self.session.state, self.session.ready.epoch if self.session.ready else 0
        if state is self._last_state and epoch == self._last_epoch:
            return
        logger.info("engine %s: %s -> %s", self.session.address, self._last_state.value, state.value)
        self._last_state, self._last_epoch = state, epoch
        self.on_change()


def _ignore() -> None:
    pass


def _has_input(socket: zmq.Socket[bytes]) -> bool:
    return int(socket.getsockopt(zmq.EVENTS)) & _POLLIN != 0
