"""Requests that share a beginning with one that is being computed wait for it, and nobody pays for that."""

from __future__ import annotations

import hashlib

import pytest

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.executor.simulated.tokens import TokenRule
from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.messages import WaitReason
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from tests.engine_core.engine_driver import EngineDriver

BLOCK = 4


def make_driver(*, depth: int = 1, **fields: object) -> EngineDriver:
    defaults: dict[str, object] = {
        "max_num_seqs": 16,
        "max_num_batched_tokens": 64,
        "max_model_len": 128,
        "block_size": BLOCK,
        "num_blocks": 256,
    }
    config = SchedulerConfig(**{**defaults, **fields})  # type: ignore[arg-type]
    return EngineDriver(config, TokenRule(500, ()), depth=depth)


def prompt(length: int, start: int = 0) -> list[int]:
    return [(start + 7 * i) % 499 + 1 for i in range(length)]


def num_prefilled(driver: EngineDriver) -> int:
    return sum(int(unpack_int32(step.num_tokens).sum()) for step in driver.steps)


def rows_of(step: SchedulerOutput | None) -> list[int]:
    return [] if step is None else [new.row for new in step.new_rows]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [16, 64, 4096])
@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_n_sequences_compute_and_store_their_prompt_once(depth: int, budget: int, policy: str) -> None:
    driver = make_driver(depth=depth, max_num_batched_tokens=budget, policy=policy)
    for seed in range(8):
        driver.add(prompt(50), seed=seed, temperature=1.0, max_tokens=1)
    least_free = driver.config.num_blocks
    while driver.engine.has_requests:
        driver.turn()
        least_free = min(least_free, driver.engine.stats().num_free_blocks)
    driver.check_ended()
    # 12 full blocks are shared; the two tokens behind them belong to each.
    assert num_prefilled(driver) == 50 + 7 * 2
    assert driver.config.num_blocks - least_free <= 12 + 8


def test_without_prefix_caching_each_computes_its_own() -> None:
    driver = make_driver(max_num_batched_tokens=4096, enable_prefix_caching=False)
    for seed in range(4):
        driver.add(prompt(50), seed=seed, max_tokens=1)
    assert rows_of(driver.plan()) == [0, 1, 2, 3]


def test_a_request_that_shares_less_than_a_block_does_not_wait() -> None:
    driver = make_driver()
    driver.add(prompt(20))
    driver.add([*prompt(BLOCK - 1), 499, *prompt(8)])
    assert rows_of(driver.plan()) == [0, 1]


def test_a_request_waits_only_for_what_it_shares() -> None:
    driver = make_driver(max_prefill_tokens=8)
    driver.add(prompt(64), max_tokens=1)
    driver.add([*prompt(10), 499, 498], max_tokens=1)
    assert rows_of(driver.plan()) == [0]
    driver.apply()
    # Two of the leader's sixteen blocks are done, and the other shares no more.
    assert rows_of(driver.plan()) == [1]
    driver.apply()
    driver.run()
    assert num_prefilled(driver) == 64 + 4


def test_those_behind_pass_and_take_no_row_away() -> None:
    driver = make_driver(max_num_seqs=3)
    for _ in range(2):
        driver.add(prompt(20), max_tokens=30)
    others = [driver.add(prompt(20, start=100 * i), max_tokens=30) for i in (1, 2)]
    step = driver.plan()
    assert rows_of(step) == [0, 1]
    assert others[0].started is not None
    assert others[1].started is None
    driver.apply()
    assert rows_of(driver.plan()) == [2]
    assert driver.sequences[b"frontend", 1].started is not None
    driver.apply()
    driver.run()


def test_those_behind_pass_and_take_no_block_away() -> None:
    driver = make_driver(num_blocks=20)
    for _ in range(2):
        driver.add(prompt(24), max_tokens=2)
    behind = driver.add(prompt(40, start=100), max_tokens=2)
    # 6 of 20 blocks are taken and 6 are kept; one stays spare, so 10 more do not fit yet.
    assert rows_of(driver.plan()) == [0]
    driver.apply()
    # The other needs one block of its own only.
    assert rows_of(driver.plan()) == [1, 2]
    assert behind.started is not None
    driver.apply()
    driver.run()


@pytest.mark.parametrize("depth", [1, 2])
def test_when_the_leader_is_aborted_another_one_leads(depth: int) -> None:
    driver = make_driver(depth=depth, max_num_batched_tokens=8)
    sequences = [driver.add(prompt(50), seed=seed, max_tokens=3) for seed in range(4)]
    driver.turn()
    driver.turn()
    driver.abort(sequences[0])
    driver.turn()
    assert sequences[1].started is not None
    assert sequences[2].started is None
    driver.run()


def test_when_the_leader_is_preempted_all_are_served_in_order() -> None:
    driver = make_driver(num_blocks=16, max_num_batched_tokens=8)
    oldest = driver.add(prompt(8, start=300), max_tokens=50)
    for seed in range(3):
        driver.add(prompt(44), seed=seed, temperature=1.0, max_tokens=4)
    driver.run()
    assert oldest.finished is not None
    assert driver.engine.stats().num_preemptions > 0


def test_a_request_of_better_priority_does_not_wait_for_a_worse_one() -> None:
    driver = make_driver(policy="priority", max_prefill_tokens=8)
    driver.add(prompt(50), priority=5, max_tokens=1)
    driver.turn()
    driver.add(prompt(50), priority=5, max_tokens=1)
    driver.add(prompt(50), priority=0, max_tokens=1)
    # The worse one waits on, for the better one or for the first.
    assert rows_of(driver.plan()) == [1]
    driver.apply()
    assert driver.sequences[b"frontend", 2].started is not None
    driver.run()


def test_a_request_with_prompt_logprobs_leads_but_does_not_follow() -> None:
    driver = make_driver()
    driver.add(prompt(20), max_tokens=1)
    driver.add(prompt(20), max_tokens=1, prompt_logprobs=0)
    assert rows_of(driver.plan()) == [0, 1]
    driver.apply()
    driver.engine.reset_prefix_cache()
    driver.add(prompt(20, start=9), max_tokens=1, prompt_logprobs=0)
    driver.add(prompt(20, start=9), max_tokens=1)
    assert len(rows_of(driver.plan())) == 1
    driver.apply()
    driver.run()


def test_a_request_tells_that_it_waits_for_a_prefix() -> None:
    driver = make_driver(max_prefill_tokens=8)
    for _ in range(2):
        driver.add(prompt(50), max_tokens=1)
    driver.turn()
    leader, follower = driver.engine.explain([], "")
    assert leader.waits_for is WaitReason.NONE
    assert follower.waits_for is WaitReason.PREFIX
    assert driver.engine.queue_stats().waiting == {"prefix": 1}
    driver.run()


def test_after_a_reset_nobody_waits_for_what_cannot_be_found_any_more() -> None:
    driver = make_driver(max_num_batched_tokens=24)
    driver.add(prompt(50), max_tokens=1)
    driver.turn()
    driver.add(prompt(50), max_tokens=1)
    driver.turn()
    driver.engine.reset_prefix_cache()
    driver.engine.check_integrity()
    driver.run()
    assert num_prefilled(driver) == 100


def test_followers_take_the_hashes_of_their_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    num_hashed = [0]

    def counting(data: bytes) -> hashlib._Hash:
        num_hashed[0] += 1
        return hashlib.sha256(data)

    driver = make_driver(max_prefill_tokens=40)
    for _ in range(5):
        driver.add(prompt(50), max_tokens=1)
    monkeypatch.setattr("splitserve.engine_core.kv_cache.block_hash.sha256", counting)
    driver.run()
    # The leader hashes its twelve blocks once; the others hash at most the first to find it.
    assert num_hashed[0] <= 12 + 4


def test_a_follower_takes_no_hash_of_blocks_that_differ() -> None:
    driver = make_driver(max_prefill_tokens=8)
    for tail in ([400], [401], [402]):
        driver.add([*prompt(21), *tail, *prompt(20)], max_tokens=2)
    driver.run()
    assert num_prefilled(driver) == 42 + 22 + 22 + 3
