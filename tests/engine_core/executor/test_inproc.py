from __future__ import annotations

import pytest

from splitserve.engine_core.errors import ModelLoadError, WorkerError
from splitserve.engine_core.executor.inproc import InprocExecutor
from splitserve.engine_core.executor.simulated.model import SimulatedModel
from splitserve.engine_core.executor.simulated.worker import SimulatedWorker
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import (
    KVCacheReady,
    ModelRunnerOutput,
    NewRow,
    SchedulerOutput,
    WorkerReady,
)
from splitserve.engine_core.sequence_sampling import SequenceSampling


class RefusingWorker(SimulatedWorker):
    def load(self) -> WorkerReady:
        raise ModelLoadError("config.json is missing")


class BrokenWorker(SimulatedWorker):
    def init_kv_cache(self, num_blocks: int, num_host_blocks: int = 0) -> KVCacheReady:
        raise MemoryError("no room")


def test_a_worker_object_goes_through_a_whole_life() -> None:
    executor = InprocExecutor(SimulatedWorker(SimulatedModel()))
    assert executor.poll_timeout_s() is None
    executor.start()
    assert executor.poll_timeout_s() == 0.0
    assert isinstance(executor.receive()[0], WorkerReady)
    executor.init_kv_cache(4)
    assert executor.receive() == [KVCacheReady(4)]
    new_row = NewRow(0, pack_int32([1]), 1, 0, pack_int32([0]), SequenceSampling(seed=0))
    executor.submit(SchedulerOutput(1, pack_int32([0]), pack_int32([1]), [new_row]))
    executor.submit(SchedulerOutput(2, pack_int32([0]), pack_int32([1])))
    steps = [
        message.step
        for _ in range(2)
        for message in executor.receive()
        if isinstance(message, ModelRunnerOutput)
    ]
    assert steps == [1, 2]
    assert executor.receive() == []


class TellingWorker(SimulatedWorker):
    def init_kv_cache(self, num_blocks: int, num_host_blocks: int = 0) -> KVCacheReady:
        return KVCacheReady(num_blocks, move_block_ns=num_host_blocks)


def test_the_worker_is_told_both_sizes() -> None:
    executor = InprocExecutor(TellingWorker(SimulatedModel()))
    executor.init_kv_cache(4, 7)
    assert executor.receive() == [KVCacheReady(4, 7)]


def test_an_exception_of_the_worker_is_a_worker_error() -> None:
    executor = InprocExecutor(BrokenWorker(SimulatedModel()))
    executor.init_kv_cache(4)
    with pytest.raises(WorkerError, match="MemoryError: no room"):
        executor.receive()


def test_a_refused_checkpoint_keeps_its_error() -> None:
    executor = InprocExecutor(RefusingWorker(SimulatedModel()))
    executor.start()
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        executor.receive()


def test_after_a_shutdown_nothing_is_called() -> None:
    executor = InprocExecutor(BrokenWorker(SimulatedModel()))
    executor.init_kv_cache(4)
    executor.shutdown(0.0)
    assert executor.receive() == []
