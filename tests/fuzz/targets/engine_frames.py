"""Mutated frames of hostile frontends on an engine, in process, while another frontend's requests run.

A piece of a case is one byte that says who speaks and what happens afterwards, then the frame:

    bits 0-1   0 to 2: a frontend that has said hello; 3: one that has not
    bits 2-3   0: a step is planned or ends; otherwise nothing
    bits 4-6   1: half a second passes; 2: five; 3: leases are checked; 4: bookkeeping is checked;
               5: the frontend's connection is gone at the next send; 6: it is full; 7: the worker is lost

At the end of a case the hostile frontends leave. Then the other's requests must have had exactly their
tokens, nothing may run or wait, and all blocks must be free.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import EngineConfig, SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.executor.simulated.executor import SimulatedExecutor
from splitserve.engine_core.executor.simulated.model import SimulatedModel
from splitserve.engine_core.executor.simulated.tokens import TokenRule, reference_output
from splitserve.engine_core.ipc.codec import (
    encode,
    engine_decoder,
    pack_int32,
    unpack_int32,
    unpack_int64,
)
from splitserve.engine_core.ipc.messages import AddRequest, FinishReason, Hello, Rejected, StepOutputs
from splitserve.engine_core.ipc.transport import SendResult
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput
from splitserve.engine_core.process.progress import StartupReport
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.engine_core.server.frontend_handler import FrontendHandler
from splitserve.engine_core.server.frontends import FrontendTable
from splitserve.engine_core.server.startup import Loaded, Startup
from tests.fuzz.case import Case
from tests.fuzz.mutation.formats import mutate_msgpack
from tests.fuzz.mutation.frames import EPOCH, frontend_frames

PIECES_PER_CASE = 256
RULE = TokenRule(vocab_size=50, eos_token_ids=(0,), eos_probability=0.02)
SCHEDULING = SchedulerConfig(
    num_blocks=48,
    num_host_blocks=8,
    block_size=4,
    max_num_seqs=6,
    max_num_waiting=24,
    max_num_batched_tokens=64,
    max_model_len=128,
)
MODEL = SimulatedModel(RULE, 128, verify=True, block_size=4, max_rows=SCHEDULING.max_num_seqs)
NEIGHBOUR = b"neighbour"
HOSTILE = (b"hostile-0", b"hostile-1", b"hostile-2", b"stranger")
GONE, FULL = 5, 6
MAX_TURNS = 20_000


@dataclass
class Owed:
    """A request of the neighbour: what must come, and what has come."""

    expected: list[int]
    output: list[int] = field(default_factory=list)
    has_ended: bool = False


class Life:
    """One engine with its frontends, from the first Hello to the last block."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.results: dict[bytes, SendResult] = {}
        self.owed: dict[int, Owed] = {}
        config = EngineConfig(model="m", lease_s=10.0)
        self.executor = self._new_worker()
        self.table = FrontendTable(self._send, config.lease_s)
        startup = Startup(config, self.executor, StartupReport(self.clock))
        self.handler = FrontendHandler(config, self.clock, EPOCH, self.table, startup)
        self.engine = EngineCore(SCHEDULING, MODEL.info(), EPOCH, self.clock)
        self.handler.serve(self.engine, Loaded(MODEL.info(), SCHEDULING))
        for identity in (NEIGHBOUR, *HOSTILE[:3]):
            self.handler.on_frame(identity, encode(Hello(PROTOCOL_VERSION, "fuzz", "0")))

    def _new_worker(self) -> SimulatedExecutor:
        executor = SimulatedExecutor(self.clock, MODEL, step_time_s=0.01)
        executor.start()
        executor.init_kv_cache(SCHEDULING.num_blocks, SCHEDULING.num_host_blocks)
        executor.receive()
        return executor

    def _send(self, identity: bytes, frame: bytes) -> SendResult:
        if identity == NEIGHBOUR:
            self._hear(engine_decoder.decode(frame))
            return SendResult.SENT
        return self.results.pop(identity, SendResult.SENT)

    def _hear(self, message: object) -> None:
        if isinstance(message, Rejected):
            assert message.status in (429, 503), f"a valid request was refused: {message}"
            del self.owed[message.handle]
        if not isinstance(message, StepOutputs):
            return
        columns = unpack_int64(message.handles), unpack_int32(message.token_ids)
        indices = unpack_int32(message.token_indices).tolist()
        for handle, token_id, index in zip(*(column.tolist() for column in columns), indices, strict=True):
            owed = self.owed[handle]
            assert index == len(owed.output), f"request {handle}: token {index} after {len(owed.output)}"
            owed.output.append(token_id)
        for end in message.finished:
            owed = self.owed[end.handle]
            assert not owed.has_ended, f"request {end.handle} ended twice"
            if end.reason is FinishReason.ERROR:
                # In two lost workers with it alone, or displaced by another in the queue.
                assert end.error_code in ("overloaded", "request_unsafe"), f"a valid request ended: {end}"
                del self.owed[end.handle]
                continue
            assert owed.output == owed.expected, f"request {end.handle}: {end}"
            owed.has_ended = True

    def ask(self, handle: int, prompt: list[int], sampling: SequenceSampling) -> None:
        """Open a request of the neighbour."""
        self.owed[handle] = Owed(reference_output(RULE, prompt, sampling, self.engine.max_num_tokens))
        request = AddRequest(handle, f"n{handle}", pack_int32(prompt), sampling)
        self.handler.on_frame(NEIGHBOUR, encode(request))

    def turn(self) -> None:
        """What the busy loop does in a round."""
        while (output := self.engine.plan()) is not None:
            self.executor.submit(output)
        self.clock.advance(0.01)
        for message in self.executor.receive():
            assert isinstance(message, ModelRunnerOutput)
            self.engine.apply(message)
        self.engine.expire()
        self.handler.send_outputs()

    def hear(self, piece: bytes) -> None:
        """Take one piece of a case."""
        how, frame = piece[0] if piece else 0, piece[1:]
        happens = how >> 4 & 7
        identity = HOSTILE[how & 3]
        if happens in (GONE, FULL):
            self.results[identity] = SendResult.GONE if happens == GONE else SendResult.FULL
        self.handler.on_frame(identity, frame)
        if not how & 0b1100:
            self.turn()
        if happens in (1, 2):
            self.clock.advance(0.5 if happens == 1 else 5.0)
            self.handler.on_frame(NEIGHBOUR, PING)
        elif happens == 3:
            self.handler.drop_silent()
            self.handler.probe()
        elif happens == 4:
            self.engine.check_integrity()
        elif happens == 7:
            self.engine.start_over()
            self.handler.recover()
            self.executor = self._new_worker()
            self.handler.recovered()

    def end(self) -> None:
        """Let the hostile frontends leave and the others' requests end; nothing may be left."""
        for identity in HOSTILE:
            if identity in self.table:
                self.handler.drop(identity, "the case is over")
        self.engine.check_integrity()
        for _ in range(MAX_TURNS):
            if not self.engine.has_requests and not self.engine.num_steps_in_flight:
                break
            self.turn()
        self.engine.check_integrity()
        unfinished = [handle for handle, owed in self.owed.items() if not owed.has_ended]
        assert not unfinished, f"requests {unfinished} never ended"
        stats = self.engine.stats()
        assert (stats.num_running, stats.num_waiting) == (0, 0), stats
        assert stats.num_free_blocks == SCHEDULING.num_blocks, f"blocks leaked: {stats}"


PING = b"\x92\x03\x01"


class EngineFrames:
    """See the module."""

    what = "frames"

    def __init__(self) -> None:
        self.corpus = frontend_frames()

    def draw(self, rng: Random) -> Case:
        return [self._piece(rng) for _ in range(PIECES_PER_CASE)]

    def _piece(self, rng: Random) -> bytes:
        how = int(rng.random() * 4) | (int(rng.random() * 8) << 4 if rng.random() < 0.1 else 0)
        # A step takes as long as twenty frames.
        how |= 0 if rng.random() < 0.03 else 4
        frame = self.corpus[int(rng.random() * len(self.corpus))]
        # Some are left as they are: what follows needs requests that run, and frontends that came back.
        mutated = mutate_msgpack(rng, frame, self.corpus) if rng.random() < 0.9 else frame
        return bytes((how,)) + mutated

    def mutate(self, rng: Random, piece: bytes) -> bytes:
        return piece[:1] + mutate_msgpack(rng, piece[1:], self.corpus)

    def run(self, case: Case) -> int:
        life = Life()
        for number, piece in enumerate(case):
            if number % 64 == 0:
                sampling = SequenceSampling(seed=number, max_tokens=6 + number % 17)
                life.ask(number, [5 + number % 40, 7, 8, 9, 10, 11], sampling)
            life.hear(piece)
        life.end()
        return len(case)

    def finish(self) -> str:
        return ""

    def close(self) -> None:
        """There is nothing to end."""
