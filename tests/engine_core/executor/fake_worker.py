"""A worker process without torch: speaks the worker's wire, and misbehaves as its first argument says.

python -m tests.engine_core.executor.fake_worker BEHAVIOUR ADDRESS RANK
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from splitserve.engine_core.executor.simulated.model import SimulatedModel
from splitserve.engine_core.executor.simulated.worker import SimulatedWorker
from splitserve.engine_core.ipc.codec import encode, to_worker_decoder, unpack_int32
from splitserve.engine_core.ipc.transport import connect_engine
from splitserve.engine_core.ipc.wire import PROTOCOL_VERSION
from splitserve.engine_core.ipc.worker_messages import (
    AdapterLoaded,
    Configure,
    FromWorkerMessage,
    InitKVCache,
    KVCacheReady,
    LoadProgress,
    ModelRunnerOutput,
    SchedulerOutput,
    SetLogLevel,
    WorkerFailed,
    WorkerHello,
)

POISON = 666
LOADED_ONCE = "loaded-once"


class FakeWorker:
    def __init__(self, behaviour: str, address: str, rank: str) -> None:
        self.behaviour = behaviour
        self.rank = int(rank)
        self.context: zmq.Context = zmq.Context()
        self.socket = connect_engine(self.context, address, rank.encode())
        self.worker = SimulatedWorker(SimulatedModel())
        self.num_steps = 0
        self.poisoned_rows: set[int] = set()

    def send(self, message: FromWorkerMessage) -> None:
        self.socket.send(encode(message))

    def run(self) -> int:
        version = PROTOCOL_VERSION + (self.behaviour == "other version")
        self.send(WorkerHello(version, "fake", self.rank, os.getpid()))
        told = to_worker_decoder.decode(self.socket.recv())
        assert isinstance(told, Configure), told
        start: dict[str, Callable[[], int]] = {
            "end while loading": self.end_while_loading,
            "refuse the model": lambda: self.refuse("model_load_failed", "shard 2 of 3 is missing", 3),
            "refuse the flags": lambda: self.refuse("invalid_config", "--max-model-len is too long", 2),
            "device fault": lambda: self.refuse("worker_failed", "the device fell off the bus", 4),
            "load once": self.load_once,
            "garbage": self.garbage,
            "load for ever": self.load_for_ever,
            "tell of progress for ever": self.tell_of_progress_for_ever,
        }
        code = start.get(self.behaviour, lambda: 0)()
        if code == 0:
            self.load()
            self.serve()
        self.socket.close(linger=2000)
        self.context.term()
        return code

    def end_while_loading(self) -> int:
        print("first line of the story", file=sys.stderr)
        print("cannot map the weights", file=sys.stderr, flush=True)
        return 7

    def refuse(self, code: str, message: str, exit_code: int) -> int:
        self.send(WorkerFailed(code, message))
        return exit_code

    def load_once(self) -> int:
        mark = Path(tempfile.gettempdir()) / LOADED_ONCE
        if mark.exists():
            return self.refuse("model_load_failed", "shard 2 of 3 is missing", 3)
        mark.touch()
        return 0

    def garbage(self) -> int:
        self.socket.send(b"\xff\xff\xff")
        self.wait_for_ever()
        return 1

    def load_for_ever(self) -> int:
        self.send(LoadProgress(25, 100))
        self.wait_for_ever()
        return 1

    def tell_of_progress_for_ever(self) -> int:
        while True:
            self.send(LoadProgress(25, 100))
            self.socket.poll(10)

    def wait_for_ever(self) -> None:
        while True:
            signal.pause()

    def load(self) -> None:
        for percent in (0, 50, 100):
            self.send(LoadProgress(percent, 100))
        if self.behaviour == "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.send(msgspec.structs.replace(self.worker.load(), **self.memory()))

    def memory(self) -> dict[str, int]:
        """Rank 0 would give 1000 bytes, every further one a byte less; blocks are larger by as much."""
        return {"available_bytes": 1000 - self.rank, "block_bytes": 10 + self.rank}

    def serve(self) -> None:
        while True:
            message = to_worker_decoder.decode(self.socket.recv())
            if isinstance(message, InitKVCache):
                # Its answer tells what has arrived.
                self.send(KVCacheReady(message.num_blocks, message.num_host_blocks + self.rank))
            elif isinstance(message, SchedulerOutput):
                self.step(message)
            elif isinstance(message, SetLogLevel):
                # Nothing of its own shows it.
                self.send(AdapterLoaded(1, message.level))
            elif self.behaviour != "stubborn":
                return

    def step(self, message: SchedulerOutput) -> None:
        self.num_steps += 1
        if self.behaviour == "die of poison":
            self.die_of_poison(message)
        output = self.worker.execute(message)
        if self.behaviour == "answer when the next step is there":
            self.socket.poll()
        if self.num_steps == 3:
            self.misbehave(output)
        elif self.behaviour == "slowly":
            time.sleep(0.002)
            self.send(output)
        elif self.behaviour == "chatty":
            sys.stderr.write("x" * 99 + "\n")
            self.send(output)
        else:
            self.send(output)

    def die_of_poison(self, step: SchedulerOutput) -> None:
        """End with every step that computes a row whose prompt begins with POISON."""
        self.poisoned_rows.difference_update(unpack_int32(step.freed_rows).tolist())
        self.poisoned_rows.update(
            new.row for new in step.new_rows if int(unpack_int32(new.token_ids)[0]) == POISON
        )
        if not self.poisoned_rows.isdisjoint(unpack_int32(step.rows).tolist()):
            os.kill(os.getpid(), signal.SIGKILL)

    def misbehave(self, output: ModelRunnerOutput) -> None:
        match self.behaviour:
            case "killed in a step":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang in a step" | "stubborn":
                self.wait_for_ever()
            case "lose another rank":
                self.send(WorkerFailed("rank_lost", "waited 4 s for the other ranks"))
                self.wait_for_ever()
            case "lose another rank and end":
                self.send(WorkerFailed("rank_lost", "connection closed by peer"))
                self.socket.close(linger=2000)
                sys.exit(4)
            case "end in a step with a word":
                self.send(WorkerFailed("worker_failed", "the device fell off the bus"))
                self.wait_for_ever()
            case "answer another step":
                self.send(ModelRunnerOutput(999, b"", b""))
            case "chatty":
                sys.stderr.write("much to say " * 100_000 + "\n")
                self.send(output)
            case _:
                self.send(output)


if __name__ == "__main__":
    sys.exit(FakeWorker(*sys.argv[1:4]).run())
