"""The frontend's side of the protocol with one engine-core: a state machine without sockets or a clock.

It decides whether requests may be sent to the engine and whether its outputs are current. The engine's open
sequences are kept by its SequenceTable (frontend.engines.connection.sequence_table).

Events are method calls with the time of the event; messages to send collect in `outbox`. In the table, "lose"
means: the owner gets every open sequence back, alive, and `orphans` remembers their handles. A serving state
is ready, draining or recovering.

    event, in state       connecting, lost, refused    loading           serving
    connected             hello                        hello             hello
    Loading               -> loading                   new progress      lose, -> loading
    Ready, same epoch     -> ready                     -> ready          -> ready (draining stays);
                                                                         lose if the lease was over
    Ready, other epoch    -> ready                     -> ready          lose, -> ready
    Refused               -> refused                   -> refused        lose, -> refused
    Draining              -                            -                 -> draining
    Recovering            -                            -                 -> recovering (draining stays)
    HandOver              -                            -                 -> draining, the owner gets all back
    Pong, same epoch      hello                        hello             keeps it; -> draining if it says so
    Pong, other epoch     hello                        hello             lose, -> lost, hello
    disconnected          refused -> lost              -> lost           lose, -> lost
    silence               -                            -> lost           lose, -> lost, hello

A serving engine is silent after 2 s, or twenty of its steps if that is longer; a loading one after 10 s.
Hello is repeated every second until the engine replies (every ten seconds when refused); a serving engine is
pinged twice a second, or four times per lease if that is more often, which renews our lease. After this
process was stopped for longer than its lease it assumes nothing: the engine's Pong has epoch 0 if it dropped
us. On Ready orphans are aborted, whatever its epoch and lease: they are still running there, or the socket
had queued them behind a Hello, and the next life took them.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from splitserve.engine_core.errors import (
    ContextLengthError,
    EngineUnavailableError,
    OverloadedError,
    SplitServeError,
)
from splitserve.engine_core.ipc.messages import (
    MAX_HANDLES,
    Abort,
    AdaptersChanged,
    AddRequest,
    Call,
    CallResult,
    Draining,
    EngineMessage,
    FrontendMessage,
    HandOver,
    Hello,
    Loading,
    LogLevelSet,
    Ping,
    Pong,
    Ready,
    Recovering,
    Refused,
    Rejected,
    StepOutputs,
)
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION
from splitserve.frontend.engines.connection.displacement import DisplacedBy, NoOwner, SequenceOwner
from splitserve.frontend.engines.connection.errors import rejected_error
from splitserve.frontend.engines.connection.liveness import LOADING_SILENCE_S, Liveness, max_silence_s
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.connection.sequence_table import SequenceTable

MAX_OPEN_SEQUENCES = MAX_HANDLES


class EngineState(enum.Enum):
    """State of the connection to an engine; see the module's table."""

    CONNECTING = "connecting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    RECOVERING = "recovering"
    LOST = "lost"
    REFUSED = "refused"


SERVING = (EngineState.READY, EngineState.DRAINING, EngineState.RECOVERING)


class EngineSession:
    """Protocol state of one engine; owned by one event loop.

    Attributes:
        outbox: messages to send, in order.
        sequences: the engine's open sequences; sequences.wake_up() notifies their streams.
        orphans: handles of sequences that may still run on an engine that was lost, or reach its successor.
        owner: gets the sequences that the engine no longer runs.
        has_handed_over: whether it has given its requests back, since when it is on its way out.
        num_losses: how often a serving engine was lost.
        loading: its last progress, of loading or of recovering.
    """

    def __init__(self, frontend_id: str, software_version: str, address: str = "") -> None:
        self.state = EngineState.CONNECTING
        self.address = address
        self.outbox: deque[FrontendMessage] = deque()
        self.sequences = SequenceTable()
        self.owner: SequenceOwner = NoOwner()
        self.orphans: list[int] = []
        self.num_losses = 0
        self.loading: Loading | Recovering | None = None
        self.ready: Ready | None = None
        self.last_pong: Pong | None = None
        self.last_pong_s: float | None = None
        self.message = ""
        self._hello = Hello(PROTOCOL_VERSION, frontend_id, software_version)
        self._next_id = 0
        self._liveness = Liveness()
        self.has_handed_over = False

    # --- events ---

    def connected(self, now_s: float) -> None:
        """The socket is connected (again)."""
        self._say_hello(now_s)

    def disconnected(self, now_s: float) -> None:
        """The socket lost its connection: the engine's process ended, or the network failed."""
        if self.state is not EngineState.CONNECTING:
            self._lose("the connection to the engine was lost", DisplacedBy.DISCONNECTED)

    def tick(self, now_s: float) -> None:
        """Run the timers; call it a few times a second."""
        is_serving = self.state in SERVING
        self._liveness.tick(now_s, is_serving=is_serving)
        if is_serving:
            self._tick_serving(now_s)
            return
        if self.state is EngineState.LOADING and self._liveness.is_silent(now_s, LOADING_SILENCE_S):
            self._lose(f"the engine has been silent for {LOADING_SILENCE_S:.0f} s", DisplacedBy.SILENT)
        if self._liveness.wants_hello(now_s, was_refused=self.state is EngineState.REFUSED):
            self._say_hello(now_s)

    def receive(self, message: EngineMessage, now_s: float) -> None:
        """Process one message of the engine; call sequences.wake_up() after the last that has arrived.

        Raises:
            ProtocolError: its columns do not match each other; nothing was applied.
        """
        self._liveness.heard(now_s)
        match message:
            case StepOutputs():
                self._receive_outputs(message)
            case Pong():
                self._receive_pong(message, now_s)
            case Rejected():
                self._receive_rejected(message)
            case Ready():
                self._receive_ready(message, now_s)
            case Loading():
                self._leave_serving("the engine was restarted", DisplacedBy.RESTARTED)
                self.state, self.loading = EngineState.LOADING, message
            case Refused():
                self._leave_serving(message.message, DisplacedBy.RESTARTED)
                self.state, self.message = EngineState.REFUSED, message.message
            case Draining():
                if self.state in SERVING:
                    self.state = EngineState.DRAINING
            case Recovering():
                self.loading = message
                if self.state is EngineState.READY:
                    self.state = EngineState.RECOVERING
            case HandOver():
                self._receive_hand_over(message)
            case CallResult() | AdaptersChanged() | LogLevelSet():
                pass

    def garbled(self) -> None:
        """A message could not be read: whatever it said is lost, so open sequences go on anew."""
        released = self.sequences.release()
        if released:
            self.outbox.append(Abort([sequence.handle for sequence in released]))
            self._displace(released, "an invalid message was received", DisplacedBy.GARBLED)

    # --- commands ---

    def next_handle(self) -> int:
        """Return a number that no request, ping or call of this session has had."""
        self._next_id += 1
        return self._next_id

    def open(self, request: AddRequest, wake: Callable[[], None]) -> OpenSequence:
        """Send a request.

        Raises:
            EngineUnavailableError, OverloadedError: as check_room().
        """
        self.check_room(1)
        self.outbox.append(request)
        return self.sequences.add(request, wake)

    def adopt(self, sequence: OpenSequence, request: AddRequest) -> None:
        """Send the request that continues a displaced sequence.

        Raises:
            EngineUnavailableError, OverloadedError: as check_room().
        """
        self.check_room(1)
        self.outbox.append(request)
        self.sequences.adopt(sequence, request.handle)

    def check_room(self, num_sequences: int) -> None:
        """Check that so many more sequences may be sent.

        Raises:
            EngineUnavailableError: the engine is not ready.
            OverloadedError: this frontend would have more open than an engine allows it.
        """
        if self.state is not EngineState.READY:
            raise EngineUnavailableError(f"the engine at {self.address} is {self.state.value}")
        if len(self.sequences) + num_sequences > MAX_OPEN_SEQUENCES:
            raise OverloadedError(
                f"{MAX_OPEN_SEQUENCES} sequences are already in flight on the engine at {self.address}"
            )

    def abort(self, handles: Sequence[int]) -> None:
        """Abort those of the sequences that are still open; their later output is ignored."""
        known = self.sequences.remove(handles)
        if known:
            self.outbox.append(Abort(known))

    def ping(self, now_s: float) -> int:
        """Send a ping now and return its nonce, which the Pong repeats."""
        nonce = self.next_handle()
        self._liveness.pinged(now_s)
        self.outbox.append(Ping(nonce))
        return nonce

    def call(self, call: Call) -> int:
        """Send a utility call under a call_id of its own, which the CallResult repeats; return that."""
        call_id = self.next_handle()
        self.outbox.append(msgspec.structs.replace(call, call_id=call_id))
        return call_id

    # --- inside ---

    def _say_hello(self, now_s: float) -> None:
        self._liveness.said_hello(now_s)
        # At most one is queued while there is no connection.
        if self._hello not in self.outbox:
            self.outbox.append(self._hello)

    def _tick_serving(self, now_s: float) -> None:
        assert self.ready is not None
        silence_s = max_silence_s(self.last_pong.stats.median_step_s if self.last_pong else 0.0)
        if self._liveness.is_silent(now_s, silence_s):
            self._lose(f"the engine has been silent for {silence_s:.3g} s", DisplacedBy.SILENT)
            self._say_hello(now_s)
        elif self._liveness.wants_ping(now_s, self.ready.lease_s):
            self.ping(now_s)

    def _receive_ready(self, ready: Ready, now_s: float) -> None:
        same_life = self.ready is not None and self.ready.epoch == ready.epoch
        if not same_life:
            self._leave_serving("the engine was restarted", DisplacedBy.RESTARTED)
        elif not ready.lease_renewed and self.sequences:
            self._leave_serving("the engine had dropped this frontend", DisplacedBy.HANDED_OVER)
        # What the socket still had queued arrives before this, even at another life.
        self.outbox.extend(_aborts(self.orphans))
        self.orphans = []
        if not (same_life and self.state is EngineState.DRAINING):
            self.state = EngineState.READY
        self.ready, self.message = ready, ""
        self.has_handed_over = self.has_handed_over and same_life
        self.owner.returned(same_life=same_life)
        self.ping(now_s)

    def _receive_hand_over(self, hand_over: HandOver) -> None:
        if self.state not in SERVING:
            return
        self.state, self.has_handed_over = EngineState.DRAINING, True
        reason = f"it gave its requests back: {hand_over.reason[:200]}"
        self._displace(self.sequences.release(), reason, DisplacedBy.HANDED_OVER)

    def _receive_rejected(self, rejected: Rejected) -> None:
        """End a request that was rejected for good; one that may be taken elsewhere, or later, goes back."""
        error, handle = rejected_error(rejected), rejected.handle
        if handle in self.sequences and _may_be_taken(self.sequences[handle], error):
            self.owner.displaced(self.sequences.release([handle]), DisplacedBy.REJECTED, error)
        else:
            self.sequences.fail(handle, error)

    def _receive_pong(self, pong: Pong, now_s: float) -> None:
        if self.state not in SERVING or self.ready is None or pong.epoch != self.ready.epoch:
            if self._leave_serving("the engine was restarted", DisplacedBy.RESTARTED):
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
        faulty, handed_back = self.sequences.receive(outputs)
        if faulty:
            self.outbox.append(Abort([sequence.handle for sequence in faulty]))
            lost = [sequence for sequence in faulty if sequence.error is None]
            self._displace(lost, "tokens of the output were lost", DisplacedBy.GARBLED)
        if handed_back:
            # Counted, unless it ends: a faulty engine must not be sent them for ever.
            is_ending = self.state is EngineState.DRAINING
            cause = DisplacedBy.HANDED_OVER if is_ending else DisplacedBy.GARBLED
            self._displace(handed_back, "it gave requests up", cause)

    def _leave_serving(self, reason: str, cause: DisplacedBy) -> bool:
        if self.state not in SERVING:
            return False
        self._lose(reason, cause)
        return True

    def _lose(self, reason: str, cause: DisplacedBy) -> None:
        self.num_losses += self.state in SERVING
        self.state, self.message = EngineState.LOST, reason
        # Its last report belongs to an epoch, or to a connection, that has ended.
        self.last_pong = None
        released = self.sequences.release()
        # Bounded by MAX_OPEN_SEQUENCES per loss; Ready empties it before anything new can be opened.
        self.orphans += [handle for m in self.outbox if isinstance(m, Abort) for handle in m.handles]
        self.orphans += [sequence.handle for sequence in released]
        self.outbox.clear()
        # An engine that has handed over ends: that is no death, even if a request crossed its last message.
        self._displace(released, reason, DisplacedBy.HANDED_OVER if self.has_handed_over else cause)

    def _displace(self, sequences: list[OpenSequence], reason: str, cause: DisplacedBy) -> None:
        error = EngineUnavailableError(f"engine {self.address}: {reason}")
        self.owner.displaced(sequences, cause, error)


def _may_be_taken(sequence: OpenSequence, error: SplitServeError) -> bool:
    """Return whether a rejected sequence may be taken elsewhere, or later.

    A client can repeat a request for which there was no room, but not the rest of one that has been running.
    """
    # What fitted the first engine may not fit one with a smaller context.
    is_too_small = isinstance(error, OverloadedError | ContextLengthError)
    has_begun = sequence.was_displaced or sequence.request.continues
    return error.status == EngineUnavailableError.status or (is_too_small and has_begun)


def _aborts(handles: list[int]) -> Iterator[Abort]:
    return (Abort(handles[i : i + MAX_HANDLES]) for i in range(0, len(handles), MAX_HANDLES))
