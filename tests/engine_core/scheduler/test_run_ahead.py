"""Up to four short decode steps are planned ahead; of all others two."""

from __future__ import annotations

from typing import Any

from splitserve.engine_core.config import SHORT_STEP_S, SchedulerConfig
from splitserve.engine_core.executor.simulated.tokens import TokenRule
from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.scheduler.run_ahead import MAX_STEPS_AHEAD
from tests.engine_core.engine_driver import EngineDriver

NEVER_STOPS = TokenRule(vocab_size=50, eos_token_ids=())


def make_driver(
    step_s: float = SHORT_STEP_S / 2, rule: TokenRule = NEVER_STOPS, **fields: Any
) -> EngineDriver:
    config = SchedulerConfig(
        **{
            "max_num_seqs": 2,
            "max_num_batched_tokens": 16,
            "max_model_len": 256,
            "block_size": 4,
            "num_blocks": 64,
            **fields,
        }
    )
    return EngineDriver(config, rule, depth=8, step_s=step_s)


def num_planned(driver: EngineDriver) -> int:
    """Plan as much as may be planned; return the steps in flight."""
    while driver.plan() is not None:
        pass
    return driver.engine.num_steps_in_flight


def decoding(driver: EngineDriver, num_rows: int = 1, **fields: Any) -> EngineDriver:
    """Bring rows to where they decode, with nothing in flight."""
    for _ in range(num_rows):
        driver.add([1, 2, 3], **fields)
    assert num_planned(driver) == 2
    while driver.engine.num_steps_in_flight:
        driver.apply()
    return driver


def test_short_decode_steps_are_planned_further_ahead() -> None:
    driver = decoding(make_driver(), 2)
    assert num_planned(driver) == MAX_STEPS_AHEAD
    driver.apply()
    driver.apply()
    assert num_planned(driver) == MAX_STEPS_AHEAD
    driver.run()


def test_longer_steps_are_not() -> None:
    driver = decoding(make_driver(SHORT_STEP_S))
    assert num_planned(driver) == 2
    driver.run()


def test_a_request_that_could_start_is_not_kept_waiting() -> None:
    driver = decoding(make_driver())
    driver.add([1, 2, 3])
    assert num_planned(driver) == 2
    driver.run()


def test_one_that_waits_for_blocks_has_them_as_soon_as_a_row_ends() -> None:
    driver = decoding(make_driver(num_blocks=16))
    driver.add(list(range(1, 49)) + [1] * 10)
    assert num_planned(driver) == 2
    driver.run()


def test_one_that_cannot_start_keeps_nobody_back() -> None:
    driver = decoding(make_driver(max_num_seqs=1))
    driver.add([1, 2, 3])
    assert num_planned(driver) == MAX_STEPS_AHEAD
    driver.run()


def test_steps_behind_a_prompt_wait_until_it_is_computed() -> None:
    driver = decoding(make_driver())
    driver.add(list(range(1, 41)))
    assert num_planned(driver) == 2
    driver.apply()
    assert num_planned(driver) == 2
    driver.run()


def test_what_is_computed_behind_a_stop_is_dropped() -> None:
    driver = make_driver(rule=TokenRule(vocab_size=8, eos_token_ids=(0,), eos_probability=0.2))
    for seed in range(20):
        driver.add([1, 2, seed % 8], seed=seed, max_tokens=60, temperature=1.0)
    driver.run()


def test_a_row_that_ends_by_its_drafts_is_planned_no_further() -> None:
    """Of steps behind the draft that ends it, some may be planned, and one more when it is known to count."""
    driver = make_driver(num_speculative_tokens=3)
    for length in range(10, 30):
        driver.add([1, 2, 3, length % 5], seed=length, max_tokens=length)
    driver.run()
    assert min(min(unpack_int32(step.num_tokens)) for step in driver.steps) == 1
    assert driver.engine.stats().num_worker_restarts == 0


def test_a_chunk_too_small_for_the_blocks_of_so_many_steps_keeps_to_two() -> None:
    driver = decoding(make_driver(max_num_batched_tokens=MAX_STEPS_AHEAD - 1))
    assert num_planned(driver) == 2
    driver.run()
