"""Mutated frames of one of two engines of a frontend, with the owner of open requests above both.

A piece of a case is one byte that says what happens after it, then a frame of the engine that is not sound.
Bits 0-2 of the byte are 1: that engine, too, goes on with every stream; 2: half a second passes; 3: the
connection to it is lost and found; 4: new requests are opened on both.

Requests that only the sound engine has run must have had exactly their tokens. All others end too, on the
sound engine at last: whole, or with an error that has a code and a status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

import msgspec

from splitserve.engine_core.errors import (
    EngineUnavailableError,
    OverloadedError,
    ProtocolError,
    SplitServeError,
)
from splitserve.engine_core.ipc.codec import (
    encode,
    engine_decoder,
    pack_int32,
    pack_int64,
)
from splitserve.engine_core.ipc.messages import (
    Abort,
    AddRequest,
    EngineStats,
    Finished,
    FinishReason,
    FrontendMessage,
    Hello,
    Ping,
    Pong,
    Ready,
    StepOutputs,
)
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.connection.displacement import DisplacedBy
from splitserve.frontend.engines.connection.open_sequence import OpenSequence
from splitserve.frontend.engines.connection.session import EngineSession, EngineState
from splitserve.frontend.engines.failover.owner import Failover
from splitserve.frontend.engines.stream.sequence_stream import SequenceStream
from tests.fuzz.case import Case
from tests.fuzz.folders import small_tokenizer
from tests.fuzz.mutation.formats import mutate_msgpack
from tests.fuzz.mutation.frames import EPOCH, MODEL, engine_frames
from tests.fuzz.targets.engine_answers import PROMPT, check_error

PIECES_PER_CASE = 128
NUM_TOKENS = 30
SAMPLING = SamplingParams(seed=1, max_tokens=NUM_TOKENS)
EXPECTED = [65 + index % 26 for index in range(NUM_TOKENS)]
MAX_TURNS = 4000


class Side:
    """One engine as its frontend has it, and what a sound engine at the other end does."""

    def __init__(self, owner: Failover, epoch: int) -> None:
        self.session = EngineSession("frontend", "0.1.0", f"ipc:///engine-{epoch}")
        self.session.owner = self
        self._owner = owner
        self._epoch = epoch
        # By handle: how many tokens each sequence has had.
        self._running: dict[int, int] = {}

    @property
    def is_local(self) -> bool:
        return False

    @property
    def num_rows(self) -> int:
        return self.session.ready.max_num_seqs if self.session.ready else 0

    @property
    def takes_model(self) -> str | None:
        return "m" if self.session.state is EngineState.READY else None

    @property
    def max_model_len(self) -> int:
        return self.session.ready.model.max_model_len if self.session.ready else 0

    @property
    def num_open(self) -> int:
        return len(self.session.sequences)

    @property
    def numerics(self) -> str:
        return ""

    def open(self, requests: Sequence[AddRequest], wake: Callable[[], None]) -> list[OpenSequence]:
        self.session.check_room(len(requests))
        return [self.session.open(self._numbered(request), wake) for request in requests]

    def adopt(self, sequences: Sequence[OpenSequence], requests: Sequence[AddRequest]) -> None:
        self.session.check_room(len(sequences))
        for sequence, request in zip(sequences, requests, strict=True):
            self.session.adopt(sequence, self._numbered(request))

    def _numbered(self, request: AddRequest) -> AddRequest:
        return msgspec.structs.replace(request, handle=self.session.next_handle())

    def abort(self, sequences: Iterable[OpenSequence]) -> None:
        self.session.abort([sequence.handle for sequence in sequences])

    def displaced(
        self, sequences: Sequence[OpenSequence], cause: DisplacedBy, error: SplitServeError
    ) -> None:
        self._owner.displaced(self, sequences, cause, error)

    def returned(self, *, same_life: bool) -> None:
        self._owner.returned(self, same_life=same_life)

    def hear(self, frame: bytes, now_s: float) -> None:
        """What the client of an engine does with a frame."""
        try:
            self.session.receive(engine_decoder.decode(frame), now_s)
        except ProtocolError:
            self.session.garbled()

    def serve(self, now_s: float) -> None:
        """Answer everything as a sound engine does, and send every sequence its next token."""
        while self.session.outbox:
            self._answer(self.session.outbox.popleft(), now_s)
        handles = list(self._running)
        indices = [self._running[handle] for handle in handles]
        tokens = pack_int32([EXPECTED[index] for index in indices])
        ended = [handle for handle, index in self._running.items() if index + 1 == NUM_TOKENS]
        finished = [Finished(handle, FinishReason.LENGTH) for handle in ended]
        columns = pack_int64(handles), tokens, pack_int32(indices)
        self._running = {
            handle: index + 1 for handle, index in self._running.items() if index + 1 < NUM_TOKENS
        }
        self.hear(encode(StepOutputs(self._epoch, *columns, finished=finished)), now_s)

    def _answer(self, message: FrontendMessage, now_s: float) -> None:
        match message:
            case Hello():
                ready = Ready(PROTOCOL_VERSION, "0.1.0", "e", self._epoch, MODEL, ["m"], 8, 20, 10.0)
                self.hear(encode(msgspec.structs.replace(ready, lease_renewed=bool(self._running))), now_s)
            case Ping(nonce=nonce):
                self.hear(encode(Pong(nonce, self._epoch, False, EngineStats())), now_s)
            case Abort(handles=handles):
                for handle in handles:
                    self._running.pop(handle, None)
            case AddRequest():
                index = len(message.resume_token_ids) // 4
                assert index < NUM_TOKENS, "nothing is left to be generated"
                self._running[message.handle] = index


class Front:
    """A frontend with both engines and its streams."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._sides: list[Side] = []
        self.owner = Failover(self._sides, lambda: self.now_s, max_migrations=3, wait_s=30.0)
        self.hostile, self.sound = Side(self.owner, EPOCH), Side(self.owner, 2**40)
        self._sides += [self.hostile, self.sound]
        self._tokenizer = small_tokenizer()
        # Each with whether it was opened on the sound engine, and what it had.
        self._streams: list[tuple[SequenceStream, bool, list[int]]] = []
        for side in self._sides:
            side.session.connected(self.now_s)
            side.serve(self.now_s)
        self.open()

    def open(self) -> None:
        """Open a request on each engine that takes one."""
        for side in self._sides:
            client = self.owner.begin("m", side)
            request = AddRequest(0, "r", pack_int32(PROMPT), SAMPLING)
            try:
                (sequence,) = client.open([request], lambda: None)
            except (EngineUnavailableError, OverloadedError):
                continue
            stream = SequenceStream(0, sequence, SAMPLING, PROMPT, self._tokenizer)
            self._streams.append((stream, sequence.place is self.sound, []))

    def turn(self) -> None:
        """Place, wake and take."""
        self.sound.serve(self.now_s)
        self.owner.pump()
        for side in self._sides:
            while side.session.sequences.wake_up(self.now_s):
                pass
        self._streams = [entry for entry in self._streams if self._goes_on(*entry)]

    def _goes_on(self, stream: SequenceStream, was_sound: bool, tokens: list[int]) -> bool:
        try:
            delta = stream.take()
        except SplitServeError as error:
            check_error(error)
            failure: SplitServeError | None = error
        else:
            failure = None
        assert not (failure and was_sound), f"a request of the sound engine ended with {failure!r}"
        if failure is not None:
            return False
        if delta is not None:
            tokens += delta.token_ids
        if was_sound:
            assert tokens == EXPECTED[: len(tokens)]
            assert not stream.finished or len(tokens) == NUM_TOKENS
        return not stream.finished

    def end(self) -> None:
        """The hostile engine is gone for good: all that is left ends on the other."""
        self.hostile.session.disconnected(self.now_s)
        for _ in range(MAX_TURNS):
            self.turn()
            if not self._streams:
                break
            self.now_s += 0.1
            self.sound.session.tick(self.now_s)
        assert not self._streams, f"{len(self._streams)} streams never ended"
        assert not self.owner.num_displaced, "sequences are between two engines"
        assert not self.hostile.num_open + self.sound.num_open, "sequences are left in a table"


class FailoverFrames:
    """See the module."""

    what = "frames"

    def __init__(self) -> None:
        self.corpus = engine_frames()

    def draw(self, rng: Random) -> Case:
        return [self._piece(rng) for _ in range(PIECES_PER_CASE)]

    def _piece(self, rng: Random) -> bytes:
        how = int(rng.random() * 8) if rng.random() < 0.3 else 0
        frame = self.corpus[int(rng.random() * len(self.corpus))]
        return self.mutate(rng, bytes((how,)) + frame) if rng.random() < 0.8 else bytes((how,)) + frame

    def mutate(self, rng: Random, piece: bytes) -> bytes:
        return piece[:1] + mutate_msgpack(rng, piece[1:], self.corpus)

    def run(self, case: Case) -> int:
        front = Front()
        for piece in case:
            front.hostile.hear(piece[1:], front.now_s)
            match piece[0] & 7 if piece else 0:
                case 1:
                    front.hostile.serve(front.now_s)
                case 2:
                    front.now_s += 0.5
                    for side in (front.hostile, front.sound):
                        side.session.tick(front.now_s)
                case 3:
                    front.hostile.session.disconnected(front.now_s)
                    front.hostile.session.connected(front.now_s)
                case 4:
                    front.open()
            front.turn()
        front.end()
        return len(case)

    def finish(self) -> str:
        return ""

    def close(self) -> None:
        """There is nothing to end."""
