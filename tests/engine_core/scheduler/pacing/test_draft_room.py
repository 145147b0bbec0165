"""Drafts take no more of the pool than a row may hold."""

from __future__ import annotations

from splitserve.engine_core.config import SchedulerConfig
from tests.engine_core.engine_driver import EngineDriver


def test_a_last_chunk_of_a_prompt_and_its_drafts_fit_a_window() -> None:
    config = SchedulerConfig(
        max_prefill_tokens=16, max_model_len=64, block_size=1, num_blocks=200, num_speculative_tokens=4
    )
    driver = EngineDriver(config, depth=2, group_windows=[16])
    # The driver compares what rows hold with what they may hold after each step that it plans.
    driver.add([5 + i % 7 for i in range(31)], max_tokens=9)
    driver.run()
    assert max(step.max_drafts for step in driver.steps) > 0
