"""What the pool gives up comes back from host memory, to prefixes and to preempted requests."""

from __future__ import annotations

from collections.abc import Sequence

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.executor.simulated.tokens import TokenRule
from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from tests.engine_core.engine_driver import EngineDriver

RULE = TokenRule(vocab_size=50, eos_token_ids=(0,), eos_probability=0.0)
BLOCK_SIZE = 4
A, B, C = ([start + i for i in range(17)] for start in (1, 2, 3))


def make_driver(num_blocks: int = 6, num_host_blocks: int = 20, **fields: object) -> EngineDriver:
    """An engine whose pool holds one of the prompts, four full blocks and a token, and little more."""
    config = SchedulerConfig(
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=48,
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        num_host_blocks=num_host_blocks,
        **fields,  # type: ignore[arg-type]
    )
    return EngineDriver(config, RULE)


def serve(driver: EngineDriver, *prompts: Sequence[int]) -> None:
    """Serve one after the other."""
    for prompt in prompts:
        driver.add(prompt, max_tokens=1)
        driver.run()


def loads(driver: EngineDriver, step: SchedulerOutput) -> int:
    """Count the moves of a step that lead into the pool."""
    return int((unpack_int32(step.moves_to) < driver.config.num_blocks).sum())


def test_an_evicted_prefix_is_found_again_in_the_offload_tier() -> None:
    driver = make_driver()
    serve(driver, A, B)
    assert driver.engine.stats().num_saved_blocks == 3
    again = driver.add(A, max_tokens=1)
    driver.run()
    assert again.started is not None
    assert again.started.num_cached_tokens == 16
    assert driver.engine.stats().num_loaded_blocks == 3


def test_without_a_tier_it_is_computed_again() -> None:
    driver = make_driver(num_host_blocks=0)
    serve(driver, A, B)
    again = driver.add(A, max_tokens=1)
    driver.run()
    assert again.started is not None
    assert again.started.num_cached_tokens == 4
    assert all(not step.moves_from for step in driver.steps)


def test_a_second_eviction_moves_nothing() -> None:
    driver = make_driver()
    serve(driver, A, B, A, B)
    num_saved = driver.engine.stats().num_saved_blocks
    serve(driver, A, B, A)
    assert driver.engine.stats().num_saved_blocks == num_saved


def test_a_reset_forgets_the_tier_too() -> None:
    driver = make_driver()
    serve(driver, A, B)
    driver.engine.reset_prefix_cache()
    assert driver.engine.stats().num_used_host_blocks == 0
    again = driver.add(A, max_tokens=1)
    driver.run()
    assert again.started is not None
    assert again.started.num_cached_tokens == 0


def test_a_preempted_request_comes_back_from_the_tier_but_for_its_last_block() -> None:
    driver = make_driver(num_blocks=12)
    first = driver.add(A, max_tokens=30)
    second = driver.add(B, max_tokens=20)
    driver.run()
    assert second.finished is not None
    assert second.finished.num_preemptions == 1
    assert first.finished is not None
    assert first.finished.num_preemptions == 0
    returned = driver.steps[[bool(step.new_rows) for step in driver.steps].index(True, 1)].new_rows[0]
    num_known = len(returned.token_ids) // 4
    assert num_known > len(B)
    assert returned.num_computed_tokens == (num_known - 1) // BLOCK_SIZE * BLOCK_SIZE


def filled_driver() -> EngineDriver:
    """An engine with all of A in the tier and none in the pool; it may make one move per step from now on."""
    driver = make_driver(num_blocks=16)
    serve(driver, A, [40] * 47, [41] * 47)
    offload = driver.engine.scheduler.kv.cache.offload
    assert offload is not None
    offload._max_moves = 1
    return driver


def test_beside_running_rows_a_long_hit_is_loaded_step_by_step() -> None:
    driver = filled_driver()
    stream = driver.add([49], max_tokens=20)
    driver.turn()
    num_before = len(driver.steps)
    again = driver.add(A, max_tokens=1)
    while again.finished is None:
        driver.turn()
    steps = driver.steps[num_before:]
    assert [loads(driver, step) for step in steps] == [1, 1, 1, 1]
    assert again.started is not None
    assert again.started.num_cached_tokens == 16
    # The stream went on in every one of these steps.
    assert all(unpack_int32(step.rows)[0] == 0 for step in steps)
    assert stream.is_open
    driver.run()


def test_alone_it_is_loaded_at_once() -> None:
    driver = filled_driver()
    num_before = len(driver.steps)
    serve(driver, A)
    assert [loads(driver, step) for step in driver.steps[num_before:]] == [4]


def test_a_step_saves_no_more_than_it_may() -> None:
    driver = filled_driver()
    num_before = len(driver.steps)
    serve(driver, [42] * 47, [43] * 47)
    for step in driver.steps[num_before:]:
        assert len(unpack_int32(step.moves_to)) - loads(driver, step) <= 1
    assert driver.engine.stats().num_saved_blocks > 0
