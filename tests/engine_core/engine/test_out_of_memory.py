"""A step that does not fit the worker's memory: its rows enter again, in smaller steps."""

from __future__ import annotations

import pytest

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.executor.simulated.executor import FaultKind, ScriptedFault
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.ipc.messages import FinishReason
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from splitserve.engine_core.request import RequestState
from splitserve.engine_core.scheduler.memory_retries import MemoryRetries
from splitserve.engine_core.scheduler.pacing.step_budget import StepBudget
from splitserve.engine_core.scheduler.running import RunningRows
from tests.engine_core.engine_driver import EngineDriver
from tests.engine_core.requests import make_request

CONFIG = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=32, max_model_len=64, num_blocks=32)


def short_of_memory(*steps: int) -> list[ScriptedFault]:
    return [ScriptedFault(FaultKind.OUT_OF_MEMORY, step) for step in steps]


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
    assert tokens_of_steps(driver) == [30, 15, 15, 1]
    driver.add([2] * 30, max_tokens=2)
    driver.run()
    # One token more after each step that went well, from the one after the new token on.
    assert tokens_of_steps(driver)[4:] == [16, 14, 1]


def total(step: SchedulerOutput) -> int:
    return int(unpack_int32(step.num_tokens).sum())


LONG = SchedulerConfig(
    max_num_seqs=4, max_num_batched_tokens=32, max_model_len=256, num_blocks=64, enable_prefix_caching=False
)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_fitting", [1, 3, 8, 15])
def test_a_long_prompt_ends_although_large_steps_never_fit_again(depth: int, num_fitting: int) -> None:
    """Without a prefix cache, steps that grew into the lack of memory would throw it back for ever."""
    driver = EngineDriver(LONG, depth=depth, fits_memory=lambda step: total(step) <= num_fitting)
    sequences = [driver.add([1 + i % 40 for i in range(200 + k)], max_tokens=4) for k in range(2)]
    driver.run()
    for sequence in sequences:
        assert sequence.finished is not None
        assert sequence.finished.reason is FinishReason.LENGTH
        assert sequence.output == sequence.expected
    # Halvings to a step that fits, before its first token and before some of the others.
    assert all(sequence.finished and sequence.finished.num_preemptions <= 8 for sequence in sequences)


def test_a_request_that_gets_no_further_ends_after_a_bounded_number_of_attempts() -> None:
    """Every step that computes a third of the long prompt fails, however few tokens it has."""
    long = [1 + i % 40 for i in range(200)]
    computed = {"now": 0}

    def fits_memory(step: SchedulerOutput) -> bool:
        if any(row.num_prompt_tokens == len(long) for row in step.new_rows):
            computed["now"] = 0
        computed["now"] += total(step)
        return computed["now"] <= 70

    driver = EngineDriver(LONG, fits_memory=fits_memory)
    unlucky = driver.add(long, max_tokens=4)
    driver.run()
    assert unlucky.finished is not None
    assert (unlucky.finished.error_code, unlucky.finished.error_status) == ("out_of_memory", 503)
    assert unlucky.finished.num_preemptions <= driver.engine.scheduler.memory_retries.max_attempts
    # What is as long as the engine has memory for is served afterwards, with the steps of before soon.
    computed["now"] = -10_000
    after = driver.add([3] * 30, max_tokens=200)
    driver.run()
    assert after.output == after.expected


def test_a_request_thrown_back_by_others_ends_with_a_clear_error() -> None:
    """Steps without it go well and grow, and each of its own is too large."""
    budget = StepBudget(32)
    running = RunningRows(4, 4)
    retries = MemoryRetries(budget, running)
    request = make_request()
    for attempt in range(retries.max_attempts):
        enough = retries.take_back([request], 32)
        assert enough == ([request] if attempt == retries.max_attempts - 1 else [])
        for _ in range(100):
            retries.step_went_well(frozenset())
        assert budget.num_tokens == 32


def test_attempts_begin_anew_with_every_token() -> None:
    retries = MemoryRetries(StepBudget(32), RunningRows(4, 4))
    request = make_request()
    for _ in range(5 * retries.max_attempts):
        request.token_ids += pack_int32([1])
        assert retries.take_back([request], 32) == []


def test_requests_that_end_are_forgotten() -> None:
    retries = MemoryRetries(StepBudget(32), RunningRows(4, 4))
    for _ in range(10):
        request = make_request()
        retries.take_back([request], 32)
        request.state = RequestState.ENDED
    assert len(retries._restarts) == 1
    retries.step_went_well(frozenset())
    assert not retries._restarts


def test_a_token_that_has_no_room_alone_ends_its_request_and_no_other() -> None:
    # 7 tokens, then 3, then 1 token until it has been tried often enough.
    driver = EngineDriver(CONFIG, faults=short_of_memory(*range(1, 9)))
    assert driver.engine.scheduler.memory_retries.max_attempts == 8
    unlucky = driver.add([1, 2, 3, 4, 5, 6, 7], max_tokens=4)
    driver.turn()
    lucky = driver.add([7, 6, 5], max_tokens=4)
    driver.run()
    assert unlucky.finished is not None
    assert (unlucky.finished.error_code, unlucky.finished.error_status) == ("out_of_memory", 503)
    assert lucky.output == lucky.expected


def test_a_single_token_that_finds_room_in_the_end_costs_nobody_an_answer() -> None:
    driver = EngineDriver(CONFIG, faults=short_of_memory(1, 2, 3, 4, 5))
    sequence = driver.add([1, 2, 3, 4, 5, 6, 7], max_tokens=4)
    driver.run()
    assert sequence.finished is not None
    assert sequence.finished.reason is FinishReason.LENGTH
    assert sequence.output == sequence.expected


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
