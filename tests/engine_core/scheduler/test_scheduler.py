from __future__ import annotations

import pytest

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.messages import FinishReason
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from splitserve.engine_core.scheduler.pacing.prefill_cap import PrefillCap
from tests.engine_core.engine_driver import EngineDriver


def make_driver(depth: int = 1, **fields: object) -> EngineDriver:
    limits: dict[str, object] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_model_len": 64,
        "block_size": 4,
        "num_blocks": 64,
    }
    return EngineDriver(SchedulerConfig(**{**limits, **fields}), depth=depth)  # type: ignore[arg-type]


def plan(driver: EngineDriver) -> SchedulerOutput:
    output = driver.plan()
    assert output is not None
    return output


def work(output: SchedulerOutput) -> dict[int, int]:
    """Row to number of tokens."""
    return dict(
        zip(unpack_int32(output.rows).tolist(), unpack_int32(output.num_tokens).tolist(), strict=True)
    )


def test_nothing_to_do_plans_nothing() -> None:
    assert make_driver().plan() is None


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    driver = make_driver()
    driver.add(range(1, 41), max_tokens=2)
    assert [work(plan(driver))[0], driver.apply(), work(plan(driver))[0], driver.apply()] == [
        16,
        None,
        16,
        None,
    ]
    assert work(plan(driver)) == {0: 8}
    assert driver.sequences[b"frontend", 0].output == []
    driver.apply()
    assert len(driver.sequences[b"frontend", 0].output) == 1


def test_decoding_goes_on_beside_a_capped_prefill() -> None:
    driver = make_driver(max_prefill_tokens=6)
    driver.add([1, 2], max_tokens=10)
    driver.turn()
    driver.add(range(1, 21), max_tokens=2)
    assert work(plan(driver)) == {0: 1, 1: 6}
    driver.apply()
    assert work(plan(driver)) == {0: 1, 1: 6}


def test_the_cap_is_asked_for_only_when_a_step_could_prefill_beside_decoding_rows() -> None:
    asked: list[int] = []

    def cap_beside(num_decoding: int) -> PrefillCap:
        asked.append(num_decoding)
        return PrefillCap(0, 1, min_tokens=3)

    driver = make_driver(max_num_seqs=3)
    driver.engine._cap_beside = cap_beside
    driver.add([1, 2], max_tokens=20)
    driver.add([3, 4], max_tokens=20)
    for _ in range(4):
        driver.turn()
    assert asked == [], "nobody decoded, then nobody could prefill"
    driver.add([5] * 8, max_tokens=20)
    assert work(plan(driver)) == {0: 1, 1: 1, 2: 3}
    driver.apply()
    assert work(plan(driver)) == {0: 1, 1: 1, 2: 3}
    assert asked == [2, 2]
    driver.apply()
    driver.add([6] * 8, max_tokens=2)
    for _ in range(4):
        driver.turn()
    assert asked == [2, 2, 2], "the third row decodes, and no row is free for a fourth"


def test_decoding_rows_behind_a_capped_prompt_keep_their_token() -> None:
    driver = make_driver(max_num_batched_tokens=8, policy="priority")
    driver.engine._cap_beside = lambda num_decoding: PrefillCap(1000, 2**30, min_tokens=1)
    for token_id in (7, 8, 9):
        driver.add([token_id, token_id], max_tokens=20, priority=1)
    driver.turn()
    driver.add(range(1, 41), max_tokens=2)
    driver.turn()
    assert work(plan(driver)) == {3: 5, 0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize(("is_cached", "expected"), [(True, 4), (False, 8)])
def test_a_newcomer_pays_for_the_context_that_was_cached(is_cached: bool, expected: int) -> None:
    driver = make_driver(max_num_batched_tokens=64)
    prompt = list(range(1, 33))
    if is_cached:
        driver.add(prompt, max_tokens=1)
        driver.turn()
    driver.add([40, 41], max_tokens=20)
    driver.turn()
    # Units of half a token's cost by 32: n tokens behind c others cost n (64 + 2 c + n) of 640.
    driver.engine._cap_beside = lambda num_decoding: PrefillCap(10, 32, min_tokens=1)
    driver.add([*prompt, *range(1, 17)], max_tokens=1)
    assert list(work(plan(driver)).values()) == [1, expected]


def test_what_is_left_of_the_budget_goes_to_the_next_in_the_queue() -> None:
    driver = make_driver()
    for token_id in (7, 8, 9):
        driver.add([token_id] * 10, max_tokens=2)
    assert work(plan(driver)) == {0: 10, 1: 6}
    driver.apply()
    assert work(plan(driver)) == {0: 1, 1: 4, 2: 10}


def test_only_what_changed_travels() -> None:
    driver = make_driver()
    driver.add([1, 2], max_tokens=30)
    first = plan(driver)
    assert len(first.new_rows) == 1
    driver.apply()
    plan(driver)
    driver.apply()
    second = plan(driver)
    assert (second.new_rows, second.freed_rows, second.block_rows) == ([], b"", b"")
    driver.apply()
    third = plan(driver)  # computes token 4, the first of the second block
    assert unpack_int32(third.block_rows).tolist() == [0]
    assert len(unpack_int32(third.block_ids)) == 1


def test_a_freed_row_is_named_in_the_next_step() -> None:
    driver = make_driver()
    first = driver.add([1, 2], max_tokens=30)
    driver.add([3, 4], max_tokens=30)
    driver.turn()
    driver.abort(first)
    output = plan(driver)
    assert unpack_int32(output.freed_rows).tolist() == [0]
    assert work(output) == {1: 1}


def test_rows_bound_what_runs() -> None:
    driver = make_driver(max_num_seqs=2)
    for _ in range(5):
        driver.add([1], max_tokens=3)
    assert len(work(plan(driver))) == 2
    assert driver.engine.stats().num_waiting == 3


def test_the_head_of_the_queue_is_not_overtaken() -> None:
    driver = make_driver(num_blocks=8)
    driver.add([1] * 16, max_tokens=1)
    big = driver.add([2] * 24, max_tokens=1)
    small = driver.add([3], max_tokens=1)
    driver.turn()
    assert big.started is None
    assert small.started is None
    driver.run()


def test_the_last_admitted_gives_way_under_fcfs() -> None:
    driver = make_driver(num_blocks=8, max_num_batched_tokens=64)
    for i in range(3):
        driver.add([i + 1] * 7, max_tokens=18)
    driver.run()
    counts = [s.finished.num_preemptions for s in driver.sequences.values() if s.finished]
    assert counts[0] == 0
    assert counts[2] >= 1
    assert driver.engine.stats().num_preemptions == sum(counts)


def test_the_worst_priority_gives_way_and_is_served_last() -> None:
    driver = make_driver(num_blocks=8, max_num_batched_tokens=64, policy="priority")
    worst = driver.add([1] * 7, max_tokens=18, priority=2)
    driver.add([2] * 7, max_tokens=18, priority=1)
    best = driver.add([3] * 7, max_tokens=18, priority=0)
    order: list[int] = []
    while driver.engine.has_requests:
        driver.turn()
        order += [h for (_f, h), s in driver.sequences.items() if s.finished and h not in order]
    assert order[0] == best.handle
    assert order[-1] == worst.handle
    assert best.finished is not None
    assert worst.finished is not None
    assert (best.finished.num_preemptions, worst.finished.num_preemptions > 0) == (0, True)


def test_preempted_requests_return_in_order_of_arrival() -> None:
    driver = make_driver(num_blocks=9, max_num_batched_tokens=64, enable_prefix_caching=False)
    for i in range(4):
        driver.add([i + 1] * 7, max_tokens=20)
    finished: list[int] = []
    while driver.engine.has_requests:
        driver.turn()
        waiting = [request.arrival for request in driver.engine.scheduler.waiting]
        running = driver.engine.scheduler.running
        for row in running.order.tolist():
            assert all(running.request_at(row).arrival < arrival for arrival in waiting)
        finished += [h for (_f, h), s in driver.sequences.items() if s.finished and h not in finished]
    assert finished == [0, 1, 2, 3]
    assert driver.engine.stats().num_preemptions > 0


def test_a_cached_prefix_saves_its_computation() -> None:
    driver = make_driver(max_num_batched_tokens=64)
    driver.add(range(1, 14), max_tokens=1)
    driver.run()
    second = driver.add([*range(1, 14), 20], max_tokens=1)
    output = plan(driver)
    assert work(output) == {0: 2}
    assert output.new_rows[0].num_computed_tokens == 12
    driver.apply()
    assert second.finished is not None
    assert second.finished.num_cached_tokens == 12
    stats = driver.engine.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (13 + 14, 12)


def test_an_emitted_answer_is_a_prefix_for_the_next_turn_of_a_chat() -> None:
    driver = make_driver(max_num_batched_tokens=64)
    first = driver.add([1, 2, 3], max_tokens=14)
    driver.run()
    second = driver.add([1, 2, 3, *first.output, 9], max_tokens=1)
    driver.run()
    assert second.started is not None
    assert second.started.num_cached_tokens == 16


def test_the_next_step_is_planned_while_one_runs() -> None:
    driver = make_driver(depth=2)
    sequence = driver.add([1, 2, 3], max_tokens=4)
    assert [work(plan(driver)), work(plan(driver))] == [{0: 3}, {0: 1}]
    assert driver.plan() is None, "at most two steps are in flight"
    driver.run()
    assert len(sequence.output) == 4
    # No step computes what a length limit already rules out.
    assert sum(sum(work(step).values()) for step in driver.steps) == 3 + 3


def test_a_stop_seen_late_discards_one_token() -> None:
    driver = make_driver(depth=2)
    sequence = driver.add([1, 2, 3], max_tokens=20)
    stop = next(token for token in sequence.expected[3:] if token not in sequence.expected[:3])
    driver.run()
    driver = make_driver(depth=2)
    sequence = driver.add([1, 2, 3], max_tokens=20, stop_token_ids=(stop,))
    driver.run()
    assert sequence.output[-1] == stop
    assert sequence.finished is not None
    assert (sequence.finished.reason, sequence.finished.stop_token_id) == (FinishReason.STOP, stop)
    assert len(driver.steps) == len(sequence.output) + 1


@pytest.mark.parametrize("depth", [1, 2])
def test_a_row_given_on_while_a_step_is_in_flight_gets_its_own_tokens(depth: int) -> None:
    driver = make_driver(depth=depth, max_num_seqs=1)
    first = driver.add([1, 2, 3], max_tokens=20)
    driver.turn()
    plan(driver)
    driver.abort(first)
    second = driver.add([4, 5, 6], max_tokens=5)
    driver.run()
    assert second.output == second.expected
    assert len(second.output) == 5


@pytest.mark.parametrize("depth", [1, 2])
def test_the_oldest_request_never_waits_longer_than_the_pipeline(depth: int) -> None:
    """The younger request takes the last block just before the older one needs it, and could go on."""
    driver = make_driver(depth=depth, num_blocks=5, block_size=8, max_num_batched_tokens=64)
    oldest = driver.add([1] * 7, max_tokens=25)
    driver.add([2] * 8, max_tokens=25)
    since_token, seen = 0, 0
    while oldest.is_open:
        driver.turn()
        since_token = since_token + 1 if len(oldest.output) == seen else 0
        seen = len(oldest.output)
        assert since_token <= depth
    assert driver.engine.stats().num_preemptions > 0
    driver.run()


def test_admission_leaves_room_for_running_rows_to_grow() -> None:
    driver = make_driver(num_blocks=4, max_num_batched_tokens=64)
    driver.add([1] * 4, max_tokens=8)
    second = driver.add([2] * 12, max_tokens=1)
    driver.turn()
    assert second.started is None, "three of four blocks would leave none for the first to grow into"
    driver.run()
    assert driver.engine.stats().num_preemptions == 0


def test_nobody_is_admitted_while_running_rows_are_short_of_blocks() -> None:
    driver = make_driver(depth=2, num_blocks=5, max_num_batched_tokens=64)
    for i in range(3):
        driver.add([i + 1] * 4, max_tokens=6)
    plan(driver)
    newcomer = driver.add([9], max_tokens=1)
    assert driver.plan() is None, (
        "three rows need a block and two are free: the step in flight must end first"
    )
    assert newcomer.started is None
    driver.run()


def test_a_long_prompt_is_cut_to_the_target_while_others_decode() -> None:
    """A step takes 1 s whatever it holds, so a target of 0.5 s leaves prompts their minimal chunk."""
    driver = make_driver(max_num_batched_tokens=64, max_model_len=200, target_itl_s=0.5)
    driver.add([1, 2], max_tokens=20)
    driver.turn()
    driver.add(range(1, 41), max_tokens=2)
    driver.add([5] * 20, max_tokens=2)
    for expected in ({0: 1, 1: 16}, {0: 1, 1: 16}, {0: 1, 1: 8, 2: 8}, {0: 1, 1: 1, 2: 12}):
        assert work(plan(driver)) == expected
        driver.apply()
    driver.run()


def test_prompts_are_not_cut_when_nobody_decodes() -> None:
    driver = make_driver(max_num_batched_tokens=64, max_model_len=200, target_itl_s=0.5)
    driver.add(range(1, 41), max_tokens=2)
    driver.add([5] * 20, max_tokens=2)
    assert work(plan(driver)) == {0: 40, 1: 20}


class SecondGoesFirst:
    """Stands in for the choice of victims."""

    def choose(self, row: int) -> int:
        return 1


def test_rows_behind_a_victim_in_the_middle_still_get_their_blocks() -> None:
    driver = make_driver(num_blocks=8, max_num_batched_tokens=64)
    driver.engine.scheduler._victims = SecondGoesFirst()  # type: ignore[assignment]
    for start in (1, 11, 21):
        driver.add(range(start, start + 7), max_tokens=6, ignore_eos=True)
    driver.add(range(31, 35), max_tokens=4, ignore_eos=True)
    driver.turn()
    driver.turn()  # the last row takes the last block
    assert driver.engine.stats().num_free_blocks == 0
    # Rows 0, 1 and 2 need one each; what row 1 gives back is enough for the two others.
    assert work(plan(driver)) == {0: 1, 2: 1, 3: 1}
    assert driver.engine.stats().num_preemptions == 1
    driver.run()
