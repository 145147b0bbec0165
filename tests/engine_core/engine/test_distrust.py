"""Blocks of a request that failed on the worker are found by nobody: what they hold may be the reason."""

from __future__ import annotations

import pytest

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.executor.simulated.executor import FaultKind, ScriptedFault
from splitserve.engine_core.ipc.messages import FinishReason
from tests.engine_core.engine_driver import EngineDriver

PROMPT = list(range(1, 20))
CONFIG = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=8, block_size=4, num_blocks=40)


@pytest.mark.parametrize(("fails", "num_cached"), [(False, 16), (True, 0)])
def test_a_request_that_failed_leaves_no_prefix_behind(fails: bool, num_cached: int) -> None:
    # By its third step most of the prompt is computed and indexed.
    faults = [ScriptedFault(FaultKind.ROW_ERROR, step=3)] if fails else []
    driver = EngineDriver(CONFIG, faults=faults)
    first = driver.add(PROMPT, max_tokens=4)
    driver.run()
    assert first.finished is not None
    assert (first.finished.reason is FinishReason.ERROR) == fails
    second = driver.add(PROMPT, max_tokens=4)
    driver.run()
    assert second.finished is not None
    assert second.finished.reason is FinishReason.LENGTH
    assert second.finished.num_cached_tokens == num_cached


def test_a_request_that_shares_its_prefix_goes_on_with_its_own_tokens() -> None:
    driver = EngineDriver(CONFIG, faults=[ScriptedFault(FaultKind.ROW_ERROR, step=9, place=1)])
    sharing = driver.add(PROMPT, max_tokens=12)
    for _ in range(5):
        driver.turn()
    failing = driver.add([*PROMPT, 30, 31], max_tokens=12)
    driver.run()
    assert sharing.finished is not None
    assert sharing.finished.reason is FinishReason.LENGTH
    assert sharing.output == sharing.expected
    assert failing.finished is not None
    assert failing.finished.reason is FinishReason.ERROR
    assert failing.finished.num_cached_tokens == 16
