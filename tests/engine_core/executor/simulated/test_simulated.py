from __future__ import annotations

import pytest

from splitserve.engine_core.clock import ManualClock
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.executor.simulated.executor import FaultKind, ScriptedFault, SimulatedExecutor
from splitserve.engine_core.executor.simulated.model import SimulatedModel
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.messages import FinishReason
from splitserve.engine_core.ipc.worker_messages import (
    KVCacheReady,
    ModelRunnerOutput,
    NewRow,
    SchedulerOutput,
    WorkerReady,
)
from splitserve.engine_core.sequence_sampling import SequenceSampling
from tests.engine_core.engine_driver import EngineDriver


def first_step() -> SchedulerOutput:
    new_row = NewRow(0, pack_int32([1, 2, 3]), 3, 0, pack_int32([0]), SequenceSampling(seed=0))
    return SchedulerOutput(1, pack_int32([0]), pack_int32([3]), [new_row])


def later_step(step: int) -> SchedulerOutput:
    return SchedulerOutput(step, pack_int32([0]), pack_int32([1]))


def ready_executor(clock: ManualClock, **fields: object) -> SimulatedExecutor:
    executor = SimulatedExecutor(clock, SimulatedModel(verify=True), **fields)  # type: ignore[arg-type]
    executor.start()
    executor.init_kv_cache(10)
    executor.receive()
    return executor


def test_it_reports_its_model_and_cache() -> None:
    executor = SimulatedExecutor(ManualClock(), SimulatedModel(max_model_len=77))
    assert executor.poll_timeout_s() is None
    executor.start()
    assert executor.poll_timeout_s() == 0.0
    (ready,) = executor.receive()
    assert isinstance(ready, WorkerReady)
    assert (ready.model.vocab_size, ready.model.max_model_len) == (32000, 77)
    executor.init_kv_cache(10)
    assert executor.receive() == [KVCacheReady(10)]


def test_steps_take_their_time_one_after_the_other() -> None:
    clock = ManualClock()
    executor = ready_executor(clock, step_time_s=2.0)
    executor.submit(first_step())
    executor.submit(later_step(2))
    assert executor.poll_timeout_s() == 2.0
    assert executor.receive() == []
    clock.advance(2.0)
    (output,) = executor.receive()
    assert isinstance(output, ModelRunnerOutput)
    assert (output.step, output.compute_s) == (1, 2.0)
    assert executor.poll_timeout_s() == 2.0
    clock.advance(5.0)
    assert len(executor.receive()) == 1
    assert executor.poll_timeout_s() is None


def test_a_crash_comes_after_the_steps_before_it() -> None:
    clock = ManualClock()
    executor = ready_executor(clock, faults=[ScriptedFault(FaultKind.CRASH, step=2)])
    executor.submit(first_step())
    executor.submit(later_step(2))
    assert len(executor.receive()) == 1
    for _ in range(2):
        with pytest.raises(WorkerError, match="crashed in step 2"):
            executor.receive()


def test_a_hang_says_nothing_until_its_deadline() -> None:
    clock = ManualClock()
    executor = ready_executor(clock, faults=[ScriptedFault(FaultKind.HANG, step=1)], hang_deadline_s=30.0)
    executor.submit(first_step())
    clock.advance(29.0)
    assert executor.receive() == []
    assert executor.poll_timeout_s() == 1.0
    clock.advance(1.0)
    with pytest.raises(WorkerError, match="longer than 30 s"):
        executor.receive()


def test_a_hang_without_a_deadline_lasts() -> None:
    clock = ManualClock()
    executor = ready_executor(clock, faults=[ScriptedFault(FaultKind.HANG, step=1)])
    executor.submit(first_step())
    clock.advance(1e9)
    assert executor.receive() == []
    assert executor.poll_timeout_s() is None


def test_a_row_error_hits_the_row_at_its_place() -> None:
    config = SchedulerConfig(max_model_len=32, num_blocks=16)
    driver = EngineDriver(config, faults=[ScriptedFault(FaultKind.ROW_ERROR, step=2, place=1)])
    sequences = [driver.add([1, 2, 3], max_tokens=6) for _ in range(3)]
    driver.run()
    reasons = [sequence.finished.reason for sequence in sequences if sequence.finished]
    assert reasons == [FinishReason.LENGTH, FinishReason.ERROR, FinishReason.LENGTH]
    assert len(sequences[1].output) == 1


def test_a_shut_down_executor_has_nothing_more_to_say() -> None:
    executor = ready_executor(ManualClock())
    executor.submit(first_step())
    executor.shutdown(0.0)
    executor.shutdown(0.0)
    executor.submit(later_step(2))
    assert executor.receive() == []


def test_a_step_that_breaks_the_protocol_is_a_worker_error() -> None:
    executor = ready_executor(ManualClock())
    executor.submit(later_step(1))
    with pytest.raises(WorkerError, match="computes free rows"):
        executor.receive()
