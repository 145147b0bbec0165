"""Deadlines, queue timeouts, explanations and queue figures through the engine."""

from __future__ import annotations

import pytest

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.engine.listeners import Listeners
from splitserve.engine_core.errors import OverloadedError
from splitserve.engine_core.ipc.messages import FinishReason, RequestInfo, RequestStage, WaitReason
from tests.engine_core.engine_driver import EngineDriver, Tracked


def make_driver(depth: int = 1, **fields: object) -> EngineDriver:
    limits: dict[str, object] = {
        "max_num_seqs": 2,
        "max_num_batched_tokens": 16,
        "max_model_len": 64,
        "block_size": 4,
        "num_blocks": 64,
    }
    return EngineDriver(SchedulerConfig(**{**limits, **fields}), depth=depth)  # type: ignore[arg-type]


def explain(engine: EngineCore, *request_ids: str, tenant: str = "") -> dict[str, RequestInfo]:
    return {info.request_id: info for info in engine.explain(request_ids, tenant)}


def ended(sequence: Tracked) -> tuple[FinishReason, str, int]:
    assert sequence.finished is not None
    return sequence.finished.reason, sequence.finished.error_code, sequence.finished.error_status


def test_a_request_that_waits_too_long_ends_with_queue_timeout() -> None:
    driver = make_driver(max_num_seqs=1)
    first = driver.add([1, 2], max_tokens=12)
    driver.turn()
    second = driver.add([3, 4], max_tokens=2, queue_timeout_s=5.0)
    third = driver.add([5, 6], max_tokens=2)
    driver.run()
    assert ended(second) == (FinishReason.ERROR, "queue_timeout", 503)
    assert second.finished is not None
    assert second.finished.error_message == "the request waited in the queue for 5 s"
    assert ended(first)[0] is FinishReason.LENGTH
    assert ended(third)[0] is FinishReason.LENGTH
    assert driver.engine.queue_stats().timeouts == {"queue_timeout": 1}


def test_once_it_has_run_only_its_deadline_counts() -> None:
    driver = make_driver(num_blocks=16)
    sequence = driver.add([1, 2], max_tokens=12, queue_timeout_s=2.0, timeout_s=6.0)
    driver.run()
    assert ended(sequence) == (FinishReason.ERROR, "timeout", 504)
    assert 2 < len(sequence.output) < 12
    assert driver.engine.queue_stats().timeouts == {"timeout": 1}


def test_the_engines_default_holds_for_requests_that_name_none() -> None:
    driver = make_driver(max_num_seqs=1, queue_timeout_s=3.0)
    driver.add([1, 2], max_tokens=20)
    driver.turn()
    default = driver.add([3], max_tokens=1)
    longer = driver.add([4], max_tokens=1, queue_timeout_s=100.0)
    resumed = driver.add([5], max_tokens=4, num_resumed=1)
    driver.run()
    assert ended(default)[1] == "queue_timeout"
    assert ended(longer)[0] is FinishReason.LENGTH
    assert ended(resumed)[0] is FinishReason.LENGTH, "it was scheduled before, on another engine"


def test_no_time_is_watched_for_requests_that_ended() -> None:
    driver = make_driver(log_wait_s=50.0)
    for i in range(5):
        driver.add([1 + i], max_tokens=3, timeout_s=50.0, queue_timeout_s=50.0)
    assert driver.engine._requests.deadlines.num_watched == 15
    driver.turn()
    assert driver.engine._requests.deadlines.num_watched == 15 - 2 * 2
    driver.run()
    assert driver.engine._requests.deadlines.num_watched == 0


def test_more_tokens_than_may_wait_are_refused_with_the_time_the_queue_takes() -> None:
    driver = make_driver(max_waiting_tokens=20, max_num_seqs=1)
    driver.add([1] * 8, max_tokens=1)
    driver.add([2] * 8, max_tokens=30)
    for _ in range(6):
        driver.turn()
    # 16 tokens left the queue within its first seconds.
    driver.add([3] * 20, max_tokens=1)
    with pytest.raises(OverloadedError, match=r"--max-waiting-tokens.* wait is \d+ s") as caught:
        driver.add([4], max_tokens=1)
    assert caught.value.retry_after_s >= 1
    assert driver.engine.queue_stats().rejected == {"max_waiting_tokens": 1}
    driver.run()


def test_a_request_tells_what_it_waits_for() -> None:
    driver = make_driver()
    for i in range(4):
        driver.add([1 + i, 2], max_tokens=9)
    driver.turn()
    driver.turn()
    infos = explain(driver.engine)
    assert [info.stage for info in infos.values()] == [RequestStage.RUNNING] * 2 + [RequestStage.WAITING] * 2
    running, waiting = infos["request-0"], infos["request-3"]
    assert (running.num_prompt_tokens, running.num_output_tokens, running.waits_for) == (
        2,
        2,
        WaitReason.NONE,
    )
    assert (running.num_computed_tokens, running.position, running.queue_time_s) == (3, -1, 0.0)
    assert (waiting.waits_for, waiting.position, waiting.age_s) == (WaitReason.ROWS, 1, 2.0)
    assert driver.engine.queue_stats().waiting == {"rows": 2}
    driver.run()
    assert explain(driver.engine) == {}
    assert driver.engine.queue_stats().waiting == {}


def test_short_blocks_and_tokens_are_told_apart() -> None:
    driver = make_driver(num_blocks=6, max_num_seqs=4)
    driver.add([1] * 12, max_tokens=6)
    driver.add([2] * 12, max_tokens=1)
    driver.turn()
    assert explain(driver.engine)["request-1"].waits_for is WaitReason.BLOCKS
    driver.run()
    driver = make_driver(max_num_batched_tokens=4, max_num_seqs=4)
    driver.add([1] * 12, max_tokens=1)
    driver.add([2] * 3, max_tokens=1)
    driver.turn()
    assert explain(driver.engine)["request-1"].waits_for is WaitReason.TOKENS
    driver.run()


def test_a_preempted_request_says_so() -> None:
    driver = make_driver(num_blocks=8, max_num_batched_tokens=64, max_num_seqs=4)
    for i in range(3):
        driver.add([i + 1] * 7, max_tokens=18)
    while not any(info.stage is RequestStage.PREEMPTED for info in driver.engine.explain([], "")):
        driver.turn()
    info = next(i for i in driver.engine.explain([], "") if i.stage is RequestStage.PREEMPTED)
    assert (info.request_id, info.num_preemptions, info.num_computed_tokens) == ("request-2", 1, 0)
    assert info.num_output_tokens == len(driver.sequences[b"frontend", 2].output) > 0
    driver.run()


def test_under_the_fair_policy_a_request_may_wait_for_its_tenants_turn() -> None:
    driver = make_driver(max_num_seqs=1, policy="fair")
    driver.add([1] * 8, max_tokens=5, tenant="greedy")
    driver.turn()
    driver.add([2], max_tokens=1, tenant="greedy")
    driver.add([3], max_tokens=1, tenant="modest")
    driver.turn()
    infos = explain(driver.engine)
    assert infos["request-1"].waits_for is WaitReason.FAIR_SHARE
    assert infos["request-2"].waits_for is WaitReason.ROWS
    stats = driver.engine.queue_stats()
    assert (stats.waiting, stats.num_tenants) == ({"rows": 1, "fair_share": 1}, 2)
    driver.run()


def test_requests_are_found_by_id_part_and_tenant() -> None:
    driver = make_driver()
    for tenant in ("a", "b", "a"):
        driver.add([1], max_tokens=9, tenant=tenant)
    assert list(explain(driver.engine, tenant="a")) == ["request-0", "request-2"]
    assert list(explain(driver.engine, "request-1", tenant="a")) == []
    assert list(explain(driver.engine, "request-1")) == ["request-1"]
    assert list(explain(driver.engine, "request")) == ["request-0", "request-1", "request-2"]
    assert list(explain(driver.engine, "reques")) == []


def test_at_most_a_hundred_requests_are_told_of_the_oldest_first() -> None:
    driver = make_driver()
    for _ in range(120):
        driver.add([1], max_tokens=1)
    assert list(explain(driver.engine)) == [f"request-{i}" for i in range(100)]


def test_a_long_wait_is_told_once() -> None:
    driver = make_driver(max_num_seqs=1, log_wait_s=3.0)
    told: list[RequestInfo] = []
    driver.engine._requests._listeners = Listeners(on_wait=told.append)
    driver.add([1], max_tokens=8)
    driver.add([2], max_tokens=1)
    driver.run()
    assert [(info.request_id, info.waits_for, info.age_s) for info in told] == [
        ("request-1", WaitReason.ROWS, 3.0)
    ]


def test_a_wait_is_told_even_if_it_has_ended_when_the_engine_looks() -> None:
    driver = make_driver(max_num_seqs=1, log_wait_s=3.0)
    told: list[RequestInfo] = []
    driver.engine._requests._listeners = Listeners(on_wait=told.append)
    driver.add([1], max_tokens=8)
    driver.turn()
    late = driver.add([2], max_tokens=1, queue_timeout_s=5.0)
    driver.clock.advance(9.0)
    driver.run()
    assert ended(late)[1] == "queue_timeout"
    assert [(info.request_id, info.waits_for) for info in told] == [("request-1", WaitReason.ROWS)]
