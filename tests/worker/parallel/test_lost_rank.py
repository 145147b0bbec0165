"""Real workers of two ranks, one of which is killed or stopped in the middle: the engine learns which."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import EngineConfig
from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.executor.local_workers import LocalWorkers
from splitserve.engine_core.executor.workers import WorkersExecutor
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import (
    Configure,
    FromWorkerMessage,
    KVCacheReady,
    ModelRunnerOutput,
    NewRow,
    SchedulerOutput,
    WorkerReady,
)
from splitserve.engine_core.sequence_sampling import SequenceSampling
from tests.worker.runner.checkpoints import write_tiny_llama

pytestmark = [pytest.mark.system, pytest.mark.slow]

DEADLINE_S = 60.0
EXCHANGE_TIMEOUT_S = 3.0


class HastyWorkers(LocalWorkers):
    """Whose workers do not wait long for each other."""

    def configure(self, rank: int) -> Configure:
        return msgspec.structs.replace(super().configure(rank), exchange_timeout_s=EXCHANGE_TIMEOUT_S)


class Engine:
    """An executor over two ranks of a tiny model; its own step deadline never comes."""

    def __init__(self, model: Path, num_stages: int) -> None:
        config = EngineConfig(
            model=str(model),
            tensor_parallel_size=2 // num_stages,
            pipeline_parallel_size=num_stages,
            num_threads=1,
            max_num_seqs=4,
            block_size=4,
        )
        self.executor = WorkersExecutor(config, ManualClock(), HastyWorkers(config))
        before = set(psutil.Process().children())
        try:
            self.executor.start()
            self.wait_for(WorkerReady)
            # Process ids may start anew between two ranks; a command line is there only after exec.
            self.workers = sorted(set(psutil.Process().children()) - before, key=rank_of)
            self.executor.init_kv_cache(40)
            self.wait_for(KVCacheReady)
        except BaseException:
            self.executor.shutdown(0.0)
            raise

    def wait_for(self, kind: type[FromWorkerMessage]) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while True:
            poller = zmq.Poller()
            for source in self.executor.sockets:
                poller.register(source, zmq.POLLIN)
            assert time.monotonic() < end_s, f"no {kind.__name__}"
            poller.poll(200)
            if any(isinstance(message, kind) for message in self.executor.receive()):
                return

    def run(self, number: int) -> None:
        """Send a step and wait for its answer.

        Raises:
            WorkerError: what ended it; already when it is sent, if a lost rank's socket is closed by then.
        """
        new = NewRow(2, pack_int32([5, 6, 7]), 3, 0, pack_int32([7, 3]), SequenceSampling(seed=1))
        first = number == 1
        self.executor.submit(
            SchedulerOutput(
                number,
                pack_int32([2]),
                pack_int32([3 if first else 1]),
                [new] if first else [],
                last_token_ids=pack_int32([9]),
            )
        )
        self.wait_for(ModelRunnerOutput)


def rank_of(worker: psutil.Process) -> int:
    words = worker.cmdline()
    return next(int(word.removeprefix("--rank=")) for word in words if word.startswith("--rank="))


@pytest.fixture
def engine(tmp_path: Path, num_stages: int) -> Iterator[Engine]:
    engine = Engine(write_tiny_llama(tmp_path / "model"), num_stages)
    yield engine
    # SIGTERM does not end a stopped process, so this takes the second that it is given.
    engine.executor.shutdown(0.0)
    assert not any(worker.is_running() for worker in engine.workers)


def stop(worker: psutil.Process) -> None:
    worker.suspend()


def kill(worker: psutil.Process) -> None:
    worker.send_signal(signal.SIGKILL)


@pytest.mark.parametrize(
    ("num_stages", "rank", "strike", "text"),
    [
        (1, 0, kill, "the worker of rank 0 was lost: killed by SIGKILL"),
        (1, 1, stop, "the worker of rank 1 did not take part: an exchange with the other ranks failed"),
        (2, 0, stop, "the worker of rank 0 did not take part: an exchange with the other ranks failed"),
        (2, 1, kill, "the worker of rank 1 was lost: killed by SIGKILL"),
    ],
)
def test_a_rank_that_is_gone_in_a_step_is_named(
    engine: Engine, rank: int, strike: Callable[[psutil.Process], None], text: str
) -> None:
    engine.run(1)
    strike(engine.workers[rank])
    with pytest.raises(WorkerError, match=text):
        engine.run(2)
