"""Mutated messages of the link between engine and workers, in process.

A piece of a case is one byte, then what it says:

    0   what a worker answers to a step of an engine that has requests: taken, or a WorkerError,
        after which the engine starts over with a new worker
    1   what an engine sends a worker: decoded, or refused
    2   a seed, by which the sound answer to a step is changed; then as 0
"""

from __future__ import annotations

from random import Random

import msgspec

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.errors import ConfigError, ProtocolError, WorkerError
from splitserve.engine_core.executor.simulated.executor import SimulatedExecutor
from splitserve.engine_core.executor.simulated.model import SimulatedModel
from splitserve.engine_core.ipc.codec import (
    encode,
    from_worker_decoder,
    pack_float32,
    pack_int32,
    to_worker_decoder,
)
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION, TokenLogprobs
from splitserve.engine_core.ipc.worker_messages import (
    AdapterLoaded,
    Adopt,
    CompileGrammar,
    Configure,
    FromWorkerMessage,
    GrammarCompiled,
    InitKVCache,
    KVCacheReady,
    LoadAdapter,
    LoadProgress,
    ModelRunnerOutput,
    NewRow,
    RowDrafts,
    RowError,
    SchedulerOutput,
    SetLogLevel,
    Shutdown,
    StageDrafts,
    WorkerFailed,
    WorkerHello,
    WorkerReady,
    WorkerWaiting,
)
from splitserve.engine_core.settings.worker_settings import WorkerPlace, WorkerSettings
from splitserve.worker.config import WorkerConfig
from tests.fuzz.case import Case
from tests.fuzz.mutation.formats import mutate_msgpack
from tests.fuzz.mutation.frames import EPOCH, SAMPLINGS
from tests.fuzz.targets.engine_frames import RULE, SCHEDULING

PIECES_PER_CASE = 64
MAX_STEPS = 20_000
MODEL = SimulatedModel(RULE, 128, block_size=4, max_rows=SCHEDULING.max_num_seqs)


def from_worker_frames() -> list[bytes]:
    """What a worker may say besides the answer that a step expects."""
    logprobs = TokenLogprobs(0, 0, 1, pack_int32([3, 4]), pack_float32([-0.5, -1.0]))
    errors = [RowError(0, "request_failed", "it broke"), RowError(1, "out_of_memory", "full", 503)]
    return [
        encode(WorkerHello(PROTOCOL_VERSION, "0.1.0", 0, 4711)),
        encode(LoadProgress(10, 20)),
        encode(WorkerReady(MODEL.info(), 4096, 2**24, 0.5)),
        encode(KVCacheReady(48, 1000)),
        encode(ModelRunnerOutput(1, pack_int32([0, 1]), pack_int32([3, 4]), [logprobs], [logprobs])),
        encode(
            ModelRunnerOutput(
                1,
                pack_int32([0, 1]),
                pack_int32([3, 4, 5]),
                run_lengths=pack_int32([2, 1]),
                num_drafts=pack_int32([1, 0]),
            )
        ),
        encode(
            ModelRunnerOutput(
                1,
                pack_int32([0]),
                pack_int32([3]),
                next_drafts=RowDrafts(pack_int32([2]), pack_int32([4, 5])),
            )
        ),
        encode(ModelRunnerOutput(2, b"", b"", errors=errors, compute_s=0.1, wait_s=0.1, move_s=0.01)),
        encode(WorkerFailed("worker_failed", "it broke")),
        encode(WorkerWaiting(0, 4711, 12)),
        encode(GrammarCompiled(1, "no such rule")),
        encode(AdapterLoaded(1, "ab" * 32, "no such file")),
    ]


def to_worker_frames() -> list[bytes]:
    """What an engine may say to a worker."""
    row = NewRow(0, pack_int32([1, 2, 3]), 3, 0, pack_int32([0]), SAMPLINGS[2])
    step = SchedulerOutput(
        1, pack_int32([0]), pack_int32([3]), [row], block_rows=b"", moves_from=pack_int32([0])
    )
    return [
        encode(Configure(WorkerSettings(model="m"))),
        encode(InitKVCache(48, 8)),
        encode(step),
        encode(SchedulerOutput(2, pack_int32([0]), pack_int32([1]), freed_rows=pack_int32([1]))),
        encode(
            SchedulerOutput(
                3,
                pack_int32([0]),
                pack_int32([1]),
                last_token_ids=pack_int32([3]),
                drafts=StageDrafts(pack_int32([4]), pack_int32([1]), pack_int32([5])),
            )
        ),
        encode(Shutdown()),
        encode(Adopt(4711)),
        encode(CompileGrammar(1, 'start: "a"')),
        encode(LoadAdapter(1, 0, "/adapter")),
        encode(SetLogLevel("warning")),
    ]


class WorkerFrames:
    """See the module."""

    what = "frames"

    def __init__(self) -> None:
        self._from_worker = from_worker_frames()
        self._to_worker = to_worker_frames()

    def draw(self, rng: Random) -> Case:
        return [self._piece(rng) for _ in range(PIECES_PER_CASE)]

    def _piece(self, rng: Random) -> bytes:
        if rng.random() < 0.5:
            return b"\1" + self._changed(rng, self._to_worker)
        if rng.random() < 0.3:
            return b"\0" + self._changed(rng, self._from_worker)
        return b"\2" + rng.randbytes(8)

    def _changed(self, rng: Random, corpus: list[bytes]) -> bytes:
        return mutate_msgpack(rng, corpus[int(rng.random() * len(corpus))], corpus)

    def mutate(self, rng: Random, piece: bytes) -> bytes:
        return piece[:1] + mutate_msgpack(rng, piece[1:], self._from_worker)

    def run(self, case: Case) -> int:
        engine = Steps()
        for piece in case:
            kind, frame = piece[0] if piece else 0, piece[1:]
            if kind % 2:
                _hear_engine(frame)
                continue
            answer = engine.step()
            if kind == 2:
                frame = mutate_msgpack(Random(frame), answer, self._from_worker)
            engine.hear(frame)
        engine.end()
        return len(case)

    def finish(self) -> str:
        return ""

    def close(self) -> None:
        """There is nothing to end."""


class Steps:
    """An engine with a few requests, step by step."""

    def __init__(self) -> None:
        self._clock = ManualClock()
        self._executor = self._new_worker()
        self._engine = EngineCore(SCHEDULING, MODEL.info(), EPOCH, self._clock)
        self._next = 0

    def _new_worker(self) -> SimulatedExecutor:
        executor = SimulatedExecutor(self._clock, MODEL)
        executor.start()
        executor.init_kv_cache(SCHEDULING.num_blocks, SCHEDULING.num_host_blocks)
        executor.receive()
        return executor

    def step(self) -> bytes:
        """Return the sound answer to the next step."""
        if not self._engine.has_requests or self._next < len(SAMPLINGS):
            self._add()
        while (planned := self._engine.plan()) is None:
            self._add()
        self._executor.submit(planned)
        (answer,) = self._executor.receive()
        return encode(answer)

    def _add(self) -> None:
        sampling = SAMPLINGS[self._next % len(SAMPLINGS)]
        prompt = pack_int32([(self._next + i) % 50 for i in range(3 + self._next % 9)])
        self._engine.add(b"frontend", AddRequest(self._next, f"r{self._next}", prompt, sampling))
        self._next += 1

    def hear(self, frame: bytes) -> None:
        """Take an answer as the engine does; a worker that is not trusted any more gets a successor."""
        try:
            message: FromWorkerMessage = from_worker_decoder.decode(frame)
            if not isinstance(message, ModelRunnerOutput):
                raise WorkerError("it is no answer to a step")
            self._engine.apply(message)
        except (ProtocolError, WorkerError):
            self._engine.start_over()
            self._executor = self._new_worker()
        self._engine.take_outputs()
        self._engine.stats()
        self._engine.queue_stats()
        self._engine.check_integrity()

    def end(self) -> None:
        """A sound worker ends what is left, and nothing remains of it."""
        for _ in range(MAX_STEPS):
            if (planned := self._engine.plan()) is not None:
                self._executor.submit(planned)
            elif not self._engine.has_requests:
                break
            self._clock.advance(0.01)
            for message in self._executor.receive():
                assert isinstance(message, ModelRunnerOutput)
                self._engine.apply(message)
            self._engine.take_outputs()
        stats = self._engine.stats()
        assert (stats.num_running, stats.num_waiting) == (0, 0), stats
        assert stats.num_free_blocks == SCHEDULING.num_blocks, f"blocks leaked: {stats}"


PLACE = WorkerPlace(connect="ipc:///nowhere", rank=0)


def _hear_engine(frame: bytes) -> None:
    try:
        message = to_worker_decoder.decode(frame)
        if isinstance(message, Configure):
            WorkerConfig.of(PLACE, message)
    except (ProtocolError, ConfigError):
        return
    assert isinstance(message, msgspec.Struct)
