"""Sliding-window models: sequences far longer than the pool, in bounded blocks, with unchanged tokens.

The simulated worker refuses a step in which a row lacks a block that its tokens see, sees another's tokens,
or writes to a block that another row still sees.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.executor.simulated.tokens import TokenRule
from splitserve.engine_core.kv_cache.window import LayerWindows, bound_rows
from tests.engine_core.engine.test_engine_properties import (
    SETTINGS,
    Arrival,
    arrivals,
    configs,
    events,
    max_turns,
    play,
    rules,
)
from tests.engine_core.engine_driver import EngineDriver


@st.composite
def layer_windows(draw: st.DrawFn) -> LayerWindows:
    """Of the first group, and of window groups that see less: of one width or of several."""
    first = draw(st.sampled_from([0, 0, 20, 9]))
    widths = draw(st.lists(st.integers(1, first or 20), max_size=3, min_size=0 if first else 1))
    return LayerWindows(first, tuple(sorted(widths, reverse=True)))


@SETTINGS
@given(
    config=configs,
    rule=rules,
    depth=st.integers(1, 2),
    windows=layer_windows(),
    num_blocks=st.integers(3, 24),
    script=st.lists(events, min_size=1, max_size=25),
)
def test_windowed_rows_see_all_they_need_and_give_back_the_rest(
    config: SchedulerConfig,
    rule: TokenRule,
    depth: int,
    windows: LayerWindows,
    num_blocks: int,
    script: list[Arrival | tuple[str, int]],
) -> None:
    # Prompts have up to 22 tokens; a pool too small for the window must at least hold these.
    least = -(-24 // config.block_size)
    num_blocks = max(num_blocks, least) * (1 + len(windows.others))
    config = msgspec.structs.replace(config, num_blocks=num_blocks)
    driver = EngineDriver(
        config, rule, depth=depth, sliding_window=windows.first, group_windows=windows.others
    )
    play(driver, script)
    driver.run(max_turns(driver))


@SETTINGS
@given(
    depth=st.integers(1, 2),
    windows=st.sampled_from(
        [LayerWindows(w) for w in range(1, 9)] + [LayerWindows(8, (5,)), LayerWindows(6, (2, 1))]
    ),
    block_size=st.integers(1, 3),
    num_blocks=st.integers(12, 16),
    caching=st.booleans(),
    script=st.lists(arrivals, min_size=2, max_size=6),
)
def test_sequences_longer_than_the_pool_end_with_the_tokens_of_a_run_alone(
    depth: int, windows: LayerWindows, block_size: int, num_blocks: int, caching: bool, script: list[Arrival]
) -> None:
    config = SchedulerConfig(
        max_num_seqs=4,
        max_num_batched_tokens=12,
        max_model_len=150,
        block_size=block_size,
        num_blocks=num_blocks * (1 + len(windows.others)),
        enable_prefix_caching=caching,
    )
    driver = EngineDriver(
        config, TokenRule(8, (0,)), depth=depth, sliding_window=windows.first, group_windows=windows.others
    )
    assert driver.engine.max_num_tokens == 150
    play(driver, [replace(arrival, timeout_s=0.0, queue_timeout_s=0.0) for arrival in script])
    driver.run(2 * max_turns(driver))


@SETTINGS
@given(
    depth=st.integers(1, 2),
    widths=st.lists(st.integers(1, 8), min_size=1, max_size=3),
    block_size=st.integers(1, 3),
    num_more=st.integers(0, 12),
    caching=st.booleans(),
    num_host_blocks=st.sampled_from([0, 0, 40]),
    script=st.lists(arrivals, min_size=2, max_size=6),
)
def test_window_groups_that_cannot_keep_a_sequence_see_their_windows(
    depth: int,
    widths: list[int],
    block_size: int,
    num_more: int,
    caching: bool,
    num_host_blocks: int,
    script: list[Arrival],
) -> None:
    """The pool holds the longest sequence in the first group, and in the others what they see of it."""
    budget, max_model_len = 6, 100
    windows = sorted(widths, reverse=True)
    bounds = bound_rows(1, block_size, budget, LayerWindows(0, tuple(windows)))
    config = SchedulerConfig(
        max_num_seqs=4,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=bounds.max_blocks_for(max_model_len) + num_more,
        enable_prefix_caching=caching,
        num_host_blocks=num_host_blocks if caching else 0,
    )
    driver = EngineDriver(config, TokenRule(8, (0,)), depth=depth, group_windows=windows)
    assert driver.engine.max_num_tokens == max_model_len
    play(driver, [replace(arrival, timeout_s=0.0, queue_timeout_s=0.0) for arrival in script])
    driver.run(2 * max_turns(driver))


@pytest.mark.parametrize("group_windows", [(6, 6), (14, 3)])
def test_window_groups_are_preempted_saved_and_found(group_windows: tuple[int, ...]) -> None:
    """Guards the properties above against never reaching the paths they are about."""
    config = SchedulerConfig(
        max_num_seqs=4,
        max_num_batched_tokens=16,
        max_model_len=64,
        block_size=2,
        num_blocks=70,
        num_host_blocks=100,
    )
    driver = EngineDriver(config, TokenRule(8, ()), depth=2, group_windows=group_windows)
    for i in range(12):
        driver.add([*range(1, 8), *range(1, 8), i % 8], max_tokens=45, ignore_eos=True)
    driver.run()
    stats = driver.engine.stats()
    offload = driver.engine.scheduler.kv.cache.offload
    assert stats.num_preemptions > 0
    assert stats.prefix_cache_hits > 0
    assert offload is not None
    assert offload.num_loaded > 0


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("caching", [True, False])
def test_a_long_generation_holds_a_bounded_number_of_blocks(depth: int, caching: bool) -> None:
    config = SchedulerConfig(
        max_num_seqs=2,
        max_num_batched_tokens=16,
        max_model_len=2000,
        block_size=4,
        num_blocks=20,
        enable_prefix_caching=caching,
    )
    driver = EngineDriver(config, TokenRule(50, ()), depth=depth, sliding_window=12)
    driver.add(range(1, 40), max_tokens=1500)
    most = 0
    while driver.engine.has_requests:
        driver.turn()
        stats = driver.engine.stats()
        if len(driver.steps) > 20:
            most = max(most, stats.num_blocks - stats.num_free_blocks)
    driver.run()
    # 12 tokens and those in flight lie in at most five blocks of four.
    assert 3 <= most <= 5
    assert driver.engine.stats().num_preemptions == 0


def test_two_long_generations_share_a_small_pool_without_preemption() -> None:
    config = SchedulerConfig(max_num_batched_tokens=16, max_model_len=600, block_size=4, num_blocks=24)
    driver = EngineDriver(config, TokenRule(50, ()), depth=2, sliding_window=12)
    for i in range(2):
        driver.add([*range(1 + i, 45), *range(1, 16 + i)], max_tokens=400)
    driver.run()
    assert driver.engine.stats().num_preemptions == 0


def test_the_next_turn_of_a_windowed_chat_finds_its_last_window() -> None:
    config = SchedulerConfig(max_num_batched_tokens=16, max_model_len=600, block_size=4, num_blocks=24)
    driver = EngineDriver(config, TokenRule(50, ()), depth=2, sliding_window=12)
    first = driver.add(range(1, 40), max_tokens=200)
    driver.run()
    # Of the history of 238 tokens the pool of 96 holds the end.
    again = driver.add([*first.prompt, *first.output, 7, 8, 9], max_tokens=5)
    driver.run()
    assert again.started is not None
    assert again.started.num_cached_tokens == 236
