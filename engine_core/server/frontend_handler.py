"""What each message of a frontend does, and what frontends are told; no sockets, no polling.

Hello and AddRequest depend on the phase, see engine_core.server.phase. Abort, Ping and Call do not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from splitserve.engine_core.clock import Clock
from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.engine.utility_calls import UtilityCalls
from splitserve.engine_core.errors import (
    InvalidRequestError,
    OverloadedError,
    ProtocolError,
    SplitServeError,
)
from splitserve.engine_core.ipc.codec import encode, frontend_decoder
from splitserve.engine_core.ipc.messages import (
    Abort,
    AddRequest,
    Call,
    CallResult,
    Draining,
    EngineMessage,
    EngineStats,
    FrontendMessage,
    HandOver,
    Hello,
    Ping,
    Pong,
    QueueStats,
    Refused,
    Rejected,
    StepOutputs,
)
from splitserve.engine_core.ipc.peers import PeerFaults
from splitserve.engine_core.ipc.transport import Content, SendResult
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION
from splitserve.engine_core.process.kill_points import reach
from splitserve.engine_core.process.logs import log_event
from splitserve.engine_core.process.version import software_version
from splitserve.engine_core.server.arrivals import Arrivals
from splitserve.engine_core.server.frontends import FrontendTable
from splitserve.engine_core.server.phase import EnginePhase
from splitserve.engine_core.server.startup import Loaded, Startup

_log = logging.getLogger("engine_core")

OVERLOAD_RETRY_S = 1.0
NO_LEASE_EPOCH = 0
_DROP_REASONS = {SendResult.GONE: "connection gone", SendResult.FULL: "reads too slowly"}


class FrontendHandler:
    """The engine as its frontends see it; owned by the busy loop's thread.

    Attributes:
        phase: how far the engine is.
        faults: what peers have done wrong.
        calls: answers utility calls.

    Args:
        epoch: identifies this run of the engine process.
        table: the connected frontends.
        startup: asked for stage and fraction while workers start.
        stalled: tells why no step can end, "" if all is well.
    """

    def __init__(
        self,
        config: EngineConfig,
        clock: Clock,
        epoch: int,
        table: FrontendTable,
        startup: Startup,
        stalled: Callable[[], str] = lambda: "",
    ) -> None:
        self._clock = clock
        self._epoch = epoch
        self.calls = UtilityCalls(epoch, config, self._post_known, self.post_all)
        self._table = table
        self._stalled = stalled
        self._arrivals = Arrivals(config.max_num_seqs + config.max_num_waiting)
        self._engine: EngineCore | None = None
        self._software_version = software_version()
        self.phase = EnginePhase(config, clock, epoch, startup)
        self.faults = PeerFaults()

    def on_frame(self, identity: bytes, frame: Content | ProtocolError) -> None:
        """Handle one message of a frontend; nothing that a frontend can send raises."""
        try:
            if isinstance(frame, ProtocolError):
                raise frame
            self._on_message(identity, frontend_decoder.decode(frame))
        except ProtocolError as error:
            self.faults.protocol_error(identity, self._table.name(identity), error)

    def on_overrun(self, identity: bytes) -> None:
        """Disconnect a peer whose queue exceeded its limit; its queued messages are lost."""
        error = ProtocolError("the peer sent more unprocessed messages than allowed")
        self.faults.protocol_error(identity, self._table.name(identity), error)
        if identity in self._table:
            self.drop(identity, "sends too much")

    def _on_message(self, identity: bytes, message: FrontendMessage) -> None:
        if isinstance(message, Hello):
            self._hello(identity, message)
        elif not self._table.touch(identity, self._clock.monotonic()):
            self._on_stranger(identity, message)
        else:
            match message:
                case AddRequest():
                    self._add(identity, message)
                case Abort(handles=handles):
                    self._arrivals.abort(identity, handles)
                    if self._engine is not None:
                        self._engine.abort(identity, handles)
                case Ping(nonce=nonce):
                    self.post(identity, self._pong(nonce))
                case Call():
                    self._call(identity, message)

    def _hello(self, identity: bytes, hello: Hello) -> None:
        if hello.protocol_version != PROTOCOL_VERSION:
            self._refuse(
                identity,
                f"frontend {hello.software_version[:64]} speaks protocol version {hello.protocol_version}, "
                f"engine-core {self._software_version} version {PROTOCOL_VERSION}: "
                "install the same release of both",
            )
            return
        try:
            known = self._table.hello(identity, hello.frontend_id[:128], self._clock.monotonic())
        except OverloadedError as error:
            self._refuse(identity, str(error))
            return
        if not known:
            log_event(_log, logging.INFO, "frontend joined", frontend=self._table.name(identity))
        for message in self.phase.messages(lease_renewed=known):
            self.post(identity, message)

    def _pong(self, nonce: int) -> Pong:
        return Pong(
            nonce=nonce,
            epoch=self._epoch,
            draining=self.phase.is_draining,
            stats=self.stats(),
            queue=self._queue_stats(),
            stalled=self._stalled(),
        )

    def _on_stranger(self, identity: bytes, message: FrontendMessage) -> None:
        """Ignore a peer without a lease; a ping is answered with epoch 0, so that it says hello again."""
        self.faults.stranger(identity, type(message).__name__)
        if isinstance(message, Ping):
            draining = self.phase.is_draining
            pong = Pong(nonce=message.nonce, epoch=NO_LEASE_EPOCH, draining=draining, stats=EngineStats())
            self._table.send_once(identity, encode(pong))

    def _refuse(self, identity: bytes, message: str) -> None:
        self.faults.protocol_error(identity, self._table.name(identity), ProtocolError(message))
        refused = Refused(
            message=message, protocol_version=PROTOCOL_VERSION, software_version=self._software_version
        )
        self._table.send_once(identity, encode(refused))

    def _add(self, identity: bytes, message: AddRequest) -> None:
        messages = self._arrivals.take(identity, message)
        if not messages:
            return
        try:
            engine = self.phase.accepting_engine()
            engine.add(identity, *messages)
            reach("engine.request_added")
        except SplitServeError as error:
            if isinstance(error, ProtocolError):
                self.faults.protocol_error(identity, self._table.name(identity), error)
            self._reject(identity, messages, error)
        except Exception:
            # A request that triggers a bug must not take down the engine's other requests. add() changes
            # nothing before it has done everything that depends on the request's content.
            _log.exception("request refused after an unexpected error")
            self._reject(identity, messages, SplitServeError("internal error"))

    def _reject(self, identity: bytes, messages: list[AddRequest], error: SplitServeError) -> None:
        """Refuse all sequences of a request."""
        for message in messages:
            if identity in self._table:
                self.post(identity, _rejected(message.handle, error))

    def _call(self, identity: bytes, call: Call) -> None:
        if self._engine is None:
            result = CallResult(call.call_id, ok=False, message="the engine is loading", status=503)
            self.post(identity, result)
        else:
            self.calls.answer(identity, call, self._engine)

    def stats(self) -> EngineStats:
        """Return the engine's statistics together with those of the connections."""
        stats = self._engine.stats() if self._engine is not None else EngineStats()
        return msgspec.structs.replace(
            stats, num_frontends=len(self._table), protocol_errors=self.faults.num_protocol_errors
        )

    def _queue_stats(self) -> QueueStats:
        return self._engine.queue_stats() if self._engine is not None else QueueStats()

    def post(self, identity: bytes, message: EngineMessage) -> None:
        """Send one message to a frontend; the frontend is dropped if it cannot take it."""
        self._post_frame(identity, encode(message))

    def _post_frame(self, identity: bytes, frame: bytes) -> None:
        result = self._table.post(identity, frame)
        if result is not SendResult.SENT:
            self.drop(identity, _DROP_REASONS[result])

    def _post_known(self, identity: bytes, message: EngineMessage) -> None:
        if identity in self._table:
            self.post(identity, message)

    def post_all(self, message: EngineMessage) -> None:
        """Send one message to every frontend."""
        frame = encode(message)
        for identity in self._table:
            self._post_frame(identity, frame)

    def drop(self, identity: bytes, reason: str) -> None:
        """Remove a frontend and abort its requests."""
        name = self._table.name(identity)
        if self._engine is not None:
            self._engine.drop_frontend(identity)
        self._arrivals.drop(identity)
        self._table.drop(identity)
        log_event(_log, logging.INFO, "frontend left", frontend=name, reason=reason)

    def announce(self) -> None:
        """Tell every frontend how far the start of the workers is."""
        self.post_all(self.phase.progress())

    def serve(self, engine: EngineCore, loaded: Loaded) -> None:
        """Begin to serve, and notify every frontend."""
        self._engine = engine
        self.calls.restore(engine)
        self.phase.serve(engine, loaded.model)
        self._post_phase(lease_renewed=False)

    def recover(self) -> None:
        """Accept no new requests until recovered() is called, and notify every frontend."""
        self.phase.is_recovering = True
        self.announce()

    def recovered(self) -> None:
        """The workers are back, and requests go on; notify every frontend."""
        self.phase.is_recovering = False
        self._post_phase(lease_renewed=True)

    def drain(self, timeout_s: float) -> None:
        """Accept no new requests from now on, and notify every frontend."""
        self.phase.drain(timeout_s)
        self.post_all(Draining(timeout_s=timeout_s))

    def hand_over(self, reason: str) -> None:
        """Give every frontend its requests back, after all their tokens so far."""
        self.send_outputs()
        if self._engine is not None:
            self._engine.abort_all()
            # What was gathered for later.
            for identity, outputs in self._engine.take_outputs(everything=True).items():
                self.post(identity, outputs)
        self.post_all(HandOver(reason=reason))
        reach("engine.handing_over")

    def _post_phase(self, *, lease_renewed: bool) -> None:
        for message in self.phase.messages(lease_renewed=lease_renewed):
            self.post_all(message)

    def send_outputs(self) -> None:
        """Send what the engine has for each frontend, one message each."""
        if self._engine is not None:
            self.calls.adapters.tell(self._engine.adapters)
            outputs_of = self._engine.take_outputs()
            for identity, outputs in outputs_of.items():
                self.post(identity, outputs)
            if outputs_of:
                reach("engine.outputs_sent")

    def probe(self) -> None:
        """Find frontends whose connection is gone by sending each an empty message."""
        self.post_all(StepOutputs(epoch=self._epoch, handles=b"", token_ids=b"", token_indices=b""))

    def drop_silent(self) -> None:
        """Drop the frontends whose leases have expired, and those found gone while flushing."""
        for identity in self._table.expired(self._clock.monotonic()):
            self.drop(identity, "lease expired")
        if self._table.has_stalled:
            for identity in self._table.flush():
                self.drop(identity, _DROP_REASONS[SendResult.GONE])


def _rejected(handle: int, error: SplitServeError) -> Rejected:
    return Rejected(
        handle=handle,
        status=400 if isinstance(error, ProtocolError) else error.status,
        code=error.code,
        message=str(error),
        param=error.param if isinstance(error, InvalidRequestError) else None,
        retry_after_s=error.retry_after_s or OVERLOAD_RETRY_S if isinstance(error, OverloadedError) else 0.0,
    )
