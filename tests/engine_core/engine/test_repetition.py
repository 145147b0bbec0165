"""An output that goes round in a loop is found at the token that completes it, and ends its request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.executor.simulated.tokens import TokenRule
from splitserve.engine_core.ipc.messages import FinishReason
from splitserve.engine_core.repetition import RepetitionTail
from splitserve.engine_core.scheduler.running import RunningRows
from splitserve.engine_core.scheduler.stopping import StopRules
from splitserve.engine_core.sequence_sampling import RepetitionDetection
from tests.engine_core.engine_driver import EngineDriver
from tests.engine_core.loops import ends_in_loop
from tests.engine_core.requests import make_request

CONFIG = SchedulerConfig(
    max_num_seqs=4, max_num_batched_tokens=16, max_model_len=64, block_size=4, num_blocks=40
)
LOOP = TokenRule(50, (0,), cycle_token_ids=(7, 8, 9))


@given(
    output=st.lists(st.integers(0, 2), max_size=40),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)).map(sorted),
    min_count=st.integers(2, 5),
    min_tokens=st.integers(0, 12),
    num_resumed=st.integers(0, 40),
)
def test_every_loop_is_found_at_the_token_that_completes_it(
    output: list[int], sizes: list[int], min_count: int, min_tokens: int, num_resumed: int
) -> None:
    detection = RepetitionDetection(sizes[1], sizes[0], min_count)
    tail = RepetitionTail(detection, min_tokens)
    resumed = RepetitionTail(detection, min_tokens, np.array(output[:num_resumed], np.int32))
    for end, token_id in enumerate(output, start=1):
        expected = end > min_tokens and ends_in_loop(output[:end], detection)
        assert tail.push(token_id) == expected
        if end > num_resumed:
            resumed.push(token_id)
        if end >= num_resumed:
            assert resumed.found == expected


@pytest.mark.parametrize(
    ("detection", "min_tokens", "length"),
    [
        (RepetitionDetection(3, 1, 2), 0, 6),
        (RepetitionDetection(16, 1, 3), 0, 9),
        (RepetitionDetection(16, 4, 2), 0, 12),
        (RepetitionDetection(2, 1, 2), 0, 30),
        (RepetitionDetection(3, 3, 2), 10, 11),
    ],
)
@pytest.mark.parametrize("depth", [1, 2])
def test_a_loop_ends_the_request_that_asked_and_no_other(
    detection: RepetitionDetection, min_tokens: int, length: int, depth: int
) -> None:
    driver = EngineDriver(CONFIG, LOOP, depth=depth)
    fields: dict[str, Any] = {"max_tokens": 30, "min_tokens": min_tokens}
    asks = driver.add([1, 2, 3], repetition_detection=detection, **fields)
    silent = driver.add([1, 2, 3], **fields)
    driver.run()
    assert asks.finished is not None
    assert silent.finished is not None
    reason = FinishReason.LENGTH if length == 30 else FinishReason.REPETITION
    assert (len(asks.output), asks.finished.reason) == (length, reason)
    assert (len(silent.output), silent.finished.reason) == (30, FinishReason.LENGTH)
    assert driver.engine.stats().finished == (
        {"length": 2} if length == 30 else {"repetition": 1, "length": 1}
    )


def test_what_a_request_left_behind_is_forgotten() -> None:
    rules, running = StopRules(10, [0]), RunningRows(1, 4)
    request = make_request([1, 2])
    request.repetition = RepetitionTail(RepetitionDetection(2))
    running.admit(0, request, step=1, num_cached_tokens=0)
    rules.watch(request)
    assert rules.detects_repetition
    running.release(0)
    rules.unwatch(request)
    assert not rules.detects_repetition


def test_the_prompt_is_no_part_of_a_loop() -> None:
    driver = EngineDriver(CONFIG, LOOP)
    sequence = driver.add([7, 8, 9, 7, 8, 9], max_tokens=5, repetition_detection=RepetitionDetection(3))
    driver.run()
    assert len(sequence.output) == 5


def test_a_stop_token_that_completes_a_loop_counts_as_stop() -> None:
    driver = EngineDriver(CONFIG, LOOP)
    detection = RepetitionDetection(3)
    sequence = driver.add(
        [1], max_tokens=20, min_tokens=5, stop_token_ids=(9,), repetition_detection=detection
    )
    driver.run()
    assert sequence.finished is not None
    assert (len(sequence.output), sequence.finished.reason) == (6, FinishReason.STOP)


@pytest.mark.parametrize("num_resumed", [2, 6])
def test_a_resumed_request_knows_what_it_had_repeated(num_resumed: int) -> None:
    driver = EngineDriver(CONFIG, LOOP)
    detection = RepetitionDetection(3)
    sequence = driver.add([1], num_resumed=num_resumed, max_tokens=20, repetition_detection=detection)
    driver.run()
    assert sequence.finished is not None
    assert (len(sequence.output), sequence.finished.reason) == (6, FinishReason.REPETITION)
    assert bool(driver.steps) == (num_resumed < 6)
