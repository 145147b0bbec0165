"""The owner of open sequences with real sessions, a clock that the test turns, and no sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from splitserve.engine_core.errors import SplitServeError
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.ipc.messages import Abort, AddRequest, Started, StepOutputs
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.connection.displacement import DisplacedBy
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.connection.session import EngineSession, EngineState
from splitserve.frontend.engines.failover.client_request import ClientRequest
from splitserve.frontend.engines.failover.owner import Failover
from tests.frontend.engines.messages import MODEL, end, outputs, ready, tokens

START_S = 1000.0
WAIT_S = 30.0


class LoneEngine:
    """One engine of the pool: its session, and what was sent to it."""

    def __init__(self, rig: Rig, name: str) -> None:
        self.session = EngineSession("f", "0", f"ipc://{name}")
        self.session.owner = self
        self.epoch = 0
        self.model = MODEL
        self.is_local = False
        self.num_rows = 8
        self._rig = rig

    @property
    def takes_model(self) -> str | None:
        return "m" if self.session.state is EngineState.READY else None

    @property
    def max_model_len(self) -> int:
        return self.model.max_model_len

    @property
    def num_open(self) -> int:
        return len(self.session.sequences)

    @property
    def numerics(self) -> str:
        return self.session.ready.model.numerics if self.session.ready else ""

    def open(self, requests: Sequence[AddRequest], wake: Callable[[], None]) -> list[OpenSequence]:
        numbered = [msgspec.structs.replace(each, handle=self.session.next_handle()) for each in requests]
        return [self.session.open(each, wake) for each in numbered]

    def adopt(self, sequences: Sequence[OpenSequence], requests: Sequence[AddRequest]) -> None:
        self.session.check_room(len(sequences))
        for sequence, request in zip(sequences, requests, strict=True):
            handle = self.session.next_handle()
            self.session.adopt(sequence, msgspec.structs.replace(request, handle=handle))

    def abort(self, sequences: Iterable[OpenSequence]) -> None:
        self.session.abort([sequence.handle for sequence in sequences])

    def displaced(
        self, sequences: Sequence[OpenSequence], cause: DisplacedBy, error: SplitServeError
    ) -> None:
        self._rig.failover.displaced(self, sequences, cause, error)

    def returned(self, *, same_life: bool) -> None:
        self._rig.failover.returned(self, same_life=same_life)

    def start(self, *, lease_renewed: bool = False, new_life: bool = True) -> None:
        """Become ready."""
        self.epoch += new_life
        self.session.receive(
            ready(self.epoch, model=self.model, lease_renewed=lease_renewed), self._rig.now_s
        )

    def lose(self, *, runs: bool = True) -> None:
        """Break the connection; by then the engine has begun to run all that it has, or nothing."""
        if runs and self.session.sequences:
            started = [Started(sequence.handle, 0, 0.0) for sequence in self.session.sequences]
            self.session.receive(StepOutputs(self.epoch, b"", b"", b"", started=started), self._rig.now_s)
        self.session.disconnected(self._rig.now_s)

    def emit(self, sequence: OpenSequence, *token_ids: int) -> None:
        """Send the next tokens of a sequence."""
        self.session.receive(
            msgspec.structs.replace(
                tokens(sequence.handle, list(token_ids), len(sequence.token_ids)), epoch=self.epoch
            ),
            self._rig.now_s,
        )

    def finish(self, sequence: OpenSequence) -> None:
        """Send the end of a sequence."""
        self.session.receive(outputs([], [end(sequence.handle)], epoch=self.epoch), self._rig.now_s)

    def asked(self) -> list[AddRequest]:
        """Requests sent since the last call."""
        asked = [message for message in self.session.outbox if isinstance(message, AddRequest)]
        self.session.outbox.clear()
        return asked

    def aborted(self) -> list[int]:
        """Handles of the aborts that are queued."""
        return [h for message in self.session.outbox if isinstance(message, Abort) for h in message.handles]


class Rig:
    """Engines, their owner, and the time."""

    def __init__(self, num_ready: int = 2, *, max_migrations: int = 3, wait_s: float = WAIT_S) -> None:
        self.now_s = START_S
        self.engines = [LoneEngine(self, name) for name in "abc"]
        self.failover = Failover(
            self.engines, lambda: self.now_s, max_migrations=max_migrations, wait_s=wait_s
        )
        self.num_wakes = 0
        for engine in self.engines[:num_ready]:
            engine.start()
            engine.session.outbox.clear()

    def wake(self) -> None:
        self.num_wakes += 1

    def begin(self, n: int = 1, engine: int = 0, **options: object) -> list[OpenSequence]:
        """Open one client's request of n sequences on an engine."""
        client = self.failover.begin("m", self.engines[engine])
        sequences = client.open(self.messages(n, **options), self.wake)
        self.engines[engine].session.outbox.clear()
        return sequences

    def messages(self, n: int = 1, **options: object) -> list[AddRequest]:
        prompt = pack_int32([1, 2, 3])
        sampling = options.pop("sampling", SamplingParams(seed=7))
        return [AddRequest(0, f"r-{i}", prompt, sampling, **options) for i in range(n)]  # type: ignore[arg-type]

    def pump(self, after_s: float = 0.0) -> float | None:
        """Let time pass, and the owner do all there is to do."""
        self.now_s += after_s
        while (delay_s := self.failover.pump()) == 0:
            pass
        return delay_s

    def pass_time(self, seconds: float) -> None:
        """Let time pass as the driver does."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.pump(0.25)


def host_of(sequence: OpenSequence) -> ClientRequest:
    assert isinstance(sequence.host, ClientRequest)
    return sequence.host


def resumed(request: AddRequest) -> list[int]:
    """Token ids that a request gives as its output so far."""
    return unpack_int32(request.resume_token_ids).tolist()
