"""A step that does not fit the worker's memory: its rows enter again, in smaller steps."""

from __future__ import annotations

import pytest

from engine_core.config import SchedulerConfig
from engine_core.executor.simulated import Fault, FaultKind
from engine_core.ipc.codec import unpack_int32
from engine_core.ipc.messages import FinishReason
from engine_core.scheduler.step_budget import StepBudget
from tests.engine_core.engine_driver import EngineDriver

CONFIG = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=32, max_model_len=64, num_blocks=32)


def short_of_memory(*steps: int) -> list[Fault]:
    return [Fault(FaultKind.OUT_OF_MEMORY, step) for step in steps]


def tokens_of_steps(driver: EngineDriver) -> list[int]:
    return [int(unpack_int32(step.num_tokens).sum()) for step in driver.steps]


@pytest.mark.parametrize("depth", [1, 2])
def test_everybody_gets_their_tokens(depth: int) -> None:
    driver = EngineDriver(CONFIG, depth=depth, faults=short_of_memory(1, 2, 5, 9))
    sequences = [driver.add([i, 2, 3, 4, 5, 6, 7], max_tokens=9) for i in range(6)]
    driver.run()
    for sequence in sequences:
        assert sequence.finished is not None
        assert sequence.finished.reason is FinishReason.LENGTH
        assert sequence.output == sequence.expected
    assert driver.engine.stats().num_preemptions > 0


def test_the_steps_after_it_are_half_as_large_and_grow_again() -> None:
    driver = EngineDriver(CONFIG, faults=short_of_memory(1))
    driver.add([1] * 30, max_tokens=2)
    driver.run()
    # One token more after each step that went well.
    assert tokens_of_steps(driver) == [30, 15, 15, 1]
    driver.add([2] * 30, max_tokens=2)
    driver.run()
    assert tokens_of_steps(driver)[4:] == [18, 12, 1]


def test_a_token_that_has_no_room_alone_ends_its_request_and_no_other() -> None:
    # 7 tokens, then 3, then 1: three tries.
    driver = EngineDriver(CONFIG, faults=short_of_memory(1, 2, 3))
    unlucky = driver.add([1, 2, 3, 4, 5, 6, 7], max_tokens=4)
    driver.turn()
    lucky = driver.add([7, 6, 5], max_tokens=4)
    driver.run()
    assert unlucky.finished is not None
    assert (unlucky.finished.error_code, unlucky.finished.error_status) == ("out_of_memory", 503)
    assert lucky.output == lucky.expected


def test_the_time_of_such_a_step_teaches_nothing() -> None:
    known = []
    for faults in ([], short_of_memory(1)):
        driver = EngineDriver(CONFIG, faults=faults)
        nothing = driver.engine._costs.recompute_ns(0, 30)
        driver.add([1] * 30, max_tokens=1)
        driver.turn()
        known.append(driver.engine._costs.recompute_ns(0, 30) != nothing)
    assert known == [True, False]


def test_the_budget_stays_between_one_and_the_configured() -> None:
    budget = StepBudget(2048)
    budget.shrink(3000)
    assert budget.num_tokens == 1500
    for _ in range(3):
        budget.shrink(1)
    assert budget.num_tokens == 1
    for _ in range(300):
        budget.grow()
    assert budget.num_tokens == 2048
