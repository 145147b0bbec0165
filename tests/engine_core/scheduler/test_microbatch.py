"""With a pipeline the steps in flight hold different rows, and say what the first stage needs to know."""

from __future__ import annotations

from typing import Any

import pytest

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from tests.engine_core.engine_driver import EngineDriver


def rows_of(step: SchedulerOutput | None) -> list[int]:
    return [] if step is None else unpack_int32(step.rows).tolist()


def make_driver(num_stages: int, **limits: Any) -> EngineDriver:
    config = SchedulerConfig(max_model_len=256, block_size=4, num_blocks=400, num_stages=num_stages, **limits)
    return EngineDriver(config, depth=max(2, num_stages))


def let_decode(driver: EngineDriver, num_requests: int) -> None:
    """Add requests and compute all their prompts in one step."""
    for i in range(num_requests):
        driver.add([i + 1, 3, 5], max_tokens=100, ignore_eos=True)
    assert len(rows_of(driver.plan())) == num_requests
    driver.apply()


@pytest.mark.parametrize(("num_stages", "sizes"), [(2, [3, 2]), (3, [2, 2, 1]), (4, [2, 2, 1, 0])])
def test_decoding_rows_are_shared_out_over_the_steps_in_flight(num_stages: int, sizes: list[int]) -> None:
    driver = make_driver(num_stages)
    let_decode(driver, 5)
    planned = [rows_of(driver.plan()) for _ in range(num_stages)]
    assert [len(rows) for rows in planned] == sizes
    assert sorted(row for rows in planned for row in rows) == [0, 1, 2, 3, 4]
    assert driver.plan() is None, "nobody is left, and nobody goes again before his token is there"
    driver.apply()
    assert rows_of(driver.plan()) == planned[0], "the same ones go on together"


def test_without_a_pipeline_all_rows_go_in_every_step() -> None:
    driver = make_driver(1)
    let_decode(driver, 5)
    first, second = driver.plan(), driver.plan()
    assert rows_of(first) == rows_of(second) == [0, 1, 2, 3, 4]
    assert first is not None
    assert first.last_token_ids == b""


def test_chunks_of_one_prompt_follow_each_other_through_the_stages() -> None:
    driver = make_driver(3, max_num_batched_tokens=8)
    driver.add(list(range(1, 31)), max_tokens=4, ignore_eos=True)
    steps = [driver.plan() for _ in range(3)]
    assert [unpack_int32(step.num_tokens).tolist() for step in steps if step is not None] == [[8], [8], [8]]
    driver.run()


def test_each_step_names_the_tokens_sampled_since() -> None:
    driver = make_driver(2)
    let_decode(driver, 3)
    step = driver.plan()
    assert step is not None
    told = dict(zip(rows_of(step), unpack_int32(step.last_token_ids).tolist(), strict=True))
    emitted = {sequence.handle: sequence.output[-1] for sequence in driver.sequences.values()}
    running = driver.engine.scheduler.running
    assert told == {row: emitted[running.request_at(row).handle] for row in told}
    driver.run()
