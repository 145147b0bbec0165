"""The frontend's side of the protocol with one engine-core: a state machine without sockets or a clock.

It decides whether requests may be sent to the engine and whether its outputs are current. The engine's open
sequences are kept by its SequenceTable (frontend.engines.connection.sequence_table).

Events are method calls with the time of the event; messages to send collect in `outbox`. In the table, "lose"
means: every open sequence fails with EngineUnavailableError, and `orphans` remembers their handles.

    event, in state       connecting, lost, refused    loading           ready, draining
    connected             hello                        hello             hello
    Loading               -> loading                   new progress      lose, -> loading
    Ready, same epoch     -> ready                     -> ready          stays; lose if the lease was over
    Ready, other epoch    -> ready                     -> ready          lose, -> ready
    Refused               -> refused                   -> refused        lose, -> refused
    Draining              -                            -                 -> draining
    Pong, same epoch      hello                        hello             keeps it; -> draining if it says so
    Pong, other epoch     hello                        hello             lose, -> lost, hello
    disconnected          refused -> lost              -> lost           lose, -> lost
    silence of 10 s       -                            -> lost           lose, -> lost, hello

Hello is repeated every second until the engine replies (every ten seconds when refused); a ready or draining
engine is pinged every second, or four times per lease if that is more often, which renews our lease. After
this process was stopped for longer than its lease it assumes nothing: the engine's Pong has epoch 0 if it
dropped us. On Ready of the same epoch and lease, orphans are aborted: they are still running there.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence

from splitserve.engine_core.errors import EngineUnavailableError, OverloadedError
from splitserve.engine_core.ipc.messages import (
    MAX_HANDLES,
    Abort,
    AddRequest,
    Call,
    CallKind,
    CallResult,
    Draining,
    EngineMessage,
    FrontendMessage,
    Hello,
    Loading,
    Ping,
    Pong,
    Ready,
    Refused,
    Rejected,
    StepOutputs,
)
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION
from splitserve.frontend.engines.connection.errors import rejected_error
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.connection.sequence_table import SequenceTable

HELLO_INTERVAL_S = 1.0
REFUSED_INTERVAL_S = 10.0
PING_INTERVAL_S = 1.0
# A lease shorter than four seconds needs more frequent pings.
PINGS_PER_LEASE = 4
SILENCE_S = 10.0
MAX_OPEN_SEQUENCES = MAX_HANDLES


class EngineState(enum.Enum):
    """State of the connection to an engine; see the module's table."""

    CONNECTING = "connecting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"
    REFUSED = "refused"


_SERVING = (EngineState.READY, EngineState.DRAINING)


class EngineSession:
    """Protocol state of one engine; owned by one event loop.

    Attributes:
        outbox: messages to send, in order.
        sequences: the engine's open sequences; sequences.wake_up() notifies their streams.
        orphans: handles of sequences that may still run on an engine that was lost.
        num_losses: how often a serving engine was lost.
    """

    def __init__(self, frontend_id: str, software_version: str, address: str = "") -> None:
        self.state = EngineState.CONNECTING
        self.address = address
        self.outbox: deque[FrontendMessage] = deque()
        self.sequences = SequenceTable()
        self.orphans: list[int] = []
        self.num_losses = 0
        self.loading: Loading | None = None
        self.ready: Ready | None = None
        self.last_pong: Pong | None = None
        self.last_pong_s: float | None = None
        self.message = ""
        self._hello = Hello(PROTOCOL_VERSION, frontend_id, software_version)
        self._next_id = 0
        self._last_hello_s = float("-inf")
        self._last_ping_s = float("-inf")
        self._last_heard_s = 0.0
        self._last_tick_s: float | None = None

    # --- events ---

    def connected(self, now_s: float) -> None:
        """The socket is connected (again)."""
        self._say_hello(now_s)

    def disconnected(self, now_s: float) -> None:
        """The socket lost its connection: the engine's process ended, or the network failed."""
        if self.state is not EngineState.CONNECTING:
            self._lose("the connection to the engine was lost")

    def tick(self, now_s: float) -> None:
        """Run the timers; call it a few times a second."""
        gap_s = 0.0 if self._last_tick_s is None else now_s - self._last_tick_s
        self._last_tick_s = now_s
        if self.state in _SERVING:
            self._tick_serving(now_s, gap_s)
            return
        interval_s = REFUSED_INTERVAL_S if self.state is EngineState.REFUSED else HELLO_INTERVAL_S
        if self.state is EngineState.LOADING and now_s - self._last_heard_s > SILENCE_S:
            self._lose(f"the engine has been silent for {SILENCE_S:.0f} s")
        if now_s - self._last_hello_s >= interval_s:
            self._say_hello(now_s)

    def receive(self, message: EngineMessage, now_s: float) -> None:
        """Process one message of the engine; call sequences.wake_up() after the last that has arrived.

        Raises:
            ProtocolError: its columns do not match each other; nothing was applied.
        """
        self._last_heard_s = now_s
        match message:
            case StepOutputs():
                self._receive_outputs(message)
            case Pong():
                self._receive_pong(message, now_s)
            case Rejected():
                self.sequences.fail(message.handle, rejected_error(message))
            case Ready():
                self._receive_ready(message, now_s)
            case Loading():
                self._leave_serving("the engine was restarted")
                self.state, self.loading = EngineState.LOADING, message
            case Refused():
                self._leave_serving(message.message)
                self.state, self.message = EngineState.REFUSED, message.message
            case Draining():
                if self.state is EngineState.READY:
                    self.state = EngineState.DRAINING
            case CallResult():
                pass

    # --- commands ---

    def next_handle(self) -> int:
        """Return a number that no request, ping or call of this session has had."""
        self._next_id += 1
        return self._next_id

    def open(self, request: AddRequest, wake: Callable[[], None]) -> OpenSequence:
        """Send a request.

        Raises:
            EngineUnavailableError: the engine is not ready.
            OverloadedError: this frontend already has the most sequences open that an engine allows it.
        """
        if self.state is not EngineState.READY:
            raise EngineUnavailableError(f"the engine at {self.address} is {self.state.value}")
        if len(self.sequences) >= MAX_OPEN_SEQUENCES:
            raise OverloadedError(
                f"{MAX_OPEN_SEQUENCES} sequences are already in flight on the engine at {self.address}"
            )
        self.outbox.append(request)
        return self.sequences.add(request, wake)

    def abort(self, handles: Sequence[int]) -> None:
        """Abort those of the sequences that are still open; their later output is ignored."""
        known = self.sequences.remove(handles)
        if known:
            self.outbox.append(Abort(known))

    def ping(self, now_s: float) -> int:
        """Send a ping now and return its nonce, which the Pong repeats."""
        nonce = self.next_handle()
        self._last_ping_s = now_s
        self.outbox.append(Ping(nonce))
        return nonce

    def call(self, kind: CallKind, request_ids: Sequence[str] = (), tenant: str = "") -> int:
        """Send a utility call and return its call_id, which the CallResult repeats."""
        call_id = self.next_handle()
        self.outbox.append(Call(call_id, kind, list(request_ids), tenant))
        return call_id

    # --- inside ---

    def _say_hello(self, now_s: float) -> None:
        self._last_hello_s = now_s
        # At most one is queued while there is no connection.
        if self._hello not in self.outbox:
            self.outbox.append(self._hello)

    def _tick_serving(self, now_s: float, gap_s: float) -> None:
        assert self.ready is not None
        if gap_s > PING_INTERVAL_S:
            # Our own process was stopped. What the engine sent meanwhile is still unread; only the engine
            # knows whether it has dropped us, and its Pong to the ping below will tell.
            self._last_heard_s += gap_s
        if now_s - self._last_heard_s > SILENCE_S:
            self._lose(f"the engine has been silent for {SILENCE_S:.0f} s")
            self._say_hello(now_s)
        elif now_s - self._last_ping_s >= min(PING_INTERVAL_S, self.ready.lease_s / PINGS_PER_LEASE):
            self.ping(now_s)

    def _receive_ready(self, ready: Ready, now_s: float) -> None:
        same_life = self.ready is not None and self.ready.epoch == ready.epoch
        if not same_life:
            self._leave_serving("the engine was restarted")
        elif not ready.lease_renewed and self.sequences:
            self._leave_serving("the engine had dropped this frontend")
        if same_life and ready.lease_renewed and self.orphans:
            for start in range(0, len(self.orphans), MAX_HANDLES):
                self.outbox.append(Abort(self.orphans[start : start + MAX_HANDLES]))
        self.orphans = []
        if not (same_life and self.state is EngineState.DRAINING):
            self.state = EngineState.READY
        self.ready, self.message = ready, ""
        self.ping(now_s)

    def _receive_pong(self, pong: Pong, now_s: float) -> None:
        if self.state not in _SERVING or self.ready is None or pong.epoch != self.ready.epoch:
            if self._leave_serving("the engine was restarted"):
                self.state = EngineState.LOST
            self._say_hello(now_s)
            return
        self.last_pong, self.last_pong_s = pong, now_s
        if pong.draining:
            self.state = EngineState.DRAINING

    def _receive_outputs(self, outputs: StepOutputs) -> None:
        if self.ready is None or outputs.epoch != self.ready.epoch:
            self.sequences.stale_outputs += 1
            return
        given_up = self.sequences.receive(outputs)
        if given_up:
            self.outbox.append(Abort(given_up))

    def _leave_serving(self, reason: str) -> bool:
        if self.state not in _SERVING:
            return False
        self._lose(reason)
        return True

    def _lose(self, reason: str) -> None:
        self.state, self.message = EngineState.LOST, reason
        self.num_losses += 1
        # Its last report belongs to an epoch, or to a connection, that has ended.
        self.last_pong = None
        for message in self.outbox:
            if isinstance(message, Abort):
                self.orphans.extend(message.handles)
        self.outbox.clear()
        # Bounded by MAX_OPEN_SEQUENCES per loss; Ready empties it before anything new can be opened.
        self.orphans += self.sequences.fail_all(f"engine {self.address}: {reason}")
