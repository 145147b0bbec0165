"""Mutated records that an engine leaves for its successor: they are believed if they can be true, or ignored.

A piece of a case is a byte, then a record: after 0 the file that says who the workers are, after 1 the memory
that says which prefixes their KV cache holds. With the latter an engine begins, and runs a request.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from random import Random

import msgspec

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.executor.simulated.executor import SimulatedExecutor
from splitserve.engine_core.executor.simulated.model import SimulatedModel
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput
from splitserve.engine_core.kept.ledger import Ledger
from splitserve.engine_core.kept.processes import ProcessName, name_process, open_process
from splitserve.engine_core.kept.record import GroupRecord, read_record
from tests.fuzz.case import Case
from tests.fuzz.folders import make_folder
from tests.fuzz.mutation.formats import mutate_json
from tests.fuzz.mutation.frames import EPOCH, SAMPLINGS
from tests.fuzz.mutation.raw import mutate_bytes
from tests.fuzz.targets.engine_frames import RULE, SCHEDULING

MODEL = SimulatedModel(RULE, 128, block_size=SCHEDULING.block_size)


def records() -> list[bytes]:
    """Of one worker and of two, with processes that exist."""
    ours = name_process(os.getpid())
    found = [GroupRecord("f" * 64, [ours]), GroupRecord("e" * 64, [ours, ProcessName(1, 1)], 7)]
    return [msgspec.json.encode(record) for record in found]


def ledgers() -> list[bytes]:
    """Of an empty KV cache, and of one with some prefixes."""
    found = []
    for num_held in (0, 5):
        ledger = Ledger.create()
        ledger.open(SCHEDULING.num_blocks, SCHEDULING.block_size)
        ledger.begin(b"s" * 32)
        ledger.enter({7 * number: bytes((number,)) * 32 for number in range(num_held)})
        found.append(os.pread(ledger.descriptor, 2**20, 0))
        ledger.close()
    return found


def begin_with(content: bytes) -> None:
    """Begin an engine over a ledger, and run a request; its blocks must be free in the end."""
    ledger = Ledger.create()
    with contextlib.closing(ledger):
        os.pwrite(ledger.descriptor, content, 0)
        clock = ManualClock()
        executor = SimulatedExecutor(clock, MODEL)
        executor.start()
        executor.init_kv_cache(SCHEDULING.num_blocks, SCHEDULING.num_host_blocks)
        executor.receive()
        engine = EngineCore(SCHEDULING, MODEL.info(), EPOCH, clock, ledger=ledger)
        engine.check_integrity()
        prompt = pack_int32(range(1, 40))
        engine.add(b"f", AddRequest(1, "r", prompt, SAMPLINGS[0]))
        while (planned := engine.plan()) is not None:
            executor.submit(planned)
            for message in executor.receive():
                assert isinstance(message, ModelRunnerOutput)
                engine.apply(message)
        engine.check_integrity()
        assert not engine.has_requests
        assert engine.stats().num_free_blocks == SCHEDULING.num_blocks


class KeptFiles:
    """See the module."""

    what = "files"

    def __init__(self) -> None:
        self._corpora = [records(), ledgers()]
        self._place = make_folder()
        self._path = Path(self._place.name) / "group.json"

    def draw(self, rng: Random) -> Case:
        kind = int(rng.random() < 0.3)
        corpus = self._corpora[kind]
        return [self.mutate(rng, bytes((kind,)) + corpus[int(rng.random() * len(corpus))])]

    def mutate(self, rng: Random, piece: bytes) -> bytes:
        if piece[:1] == b"\1":
            return piece[:1] + mutate_bytes(rng, piece[1:], self._corpora[1][1])
        return piece[:1] + mutate_json(rng, piece[1:], self._corpora[0])

    def run(self, case: Case) -> int:
        for piece in case:
            if piece[:1] == b"\1":
                begin_with(piece[1:])
            else:
                self._find_workers(piece[1:])
        return len(case)

    def _find_workers(self, content: bytes) -> None:
        ours = name_process(os.getpid())
        self._path.write_bytes(content)
        record = read_record(str(self._path))
        for worker in record.workers if record is not None else ():
            pidfd = open_process(worker)
            if pidfd >= 0:
                os.close(pidfd)
            assert (pidfd >= 0) <= (worker == ours or worker.pid != ours.pid), worker

    def finish(self) -> str:
        return ""

    def close(self) -> None:
        self._place.cleanup()
