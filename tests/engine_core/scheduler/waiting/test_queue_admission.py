"""What the queue's bounds refuse, and how its estimate follows what leaves it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitserve.engine_core.errors import OverloadedError
from splitserve.engine_core.request import Siblings
from splitserve.engine_core.scheduler.waiting.queue_admission import MAX_RETRY_S, DrainRate, QueueAdmission
from tests.engine_core.waiting import Waiting, newcomer


def make(max_num_waiting: int, max_waiting_tokens: int) -> Waiting:
    return Waiting(QueueAdmission(max_num_waiting, max_waiting_tokens, {}))


def refused(
    waiting: Waiting, request: Siblings, now_s: float = 0.0, num_free_rows: int = 0
) -> OverloadedError:
    with pytest.raises(OverloadedError) as caught:
        waiting.admission.make_room(request, num_free_rows, now_s)
    return caught.value


def test_the_bound_of_requests_is_exact() -> None:
    waiting = make(3, 1000)
    for _ in range(3):
        waiting.add(newcomer(10))
    error = refused(waiting, newcomer(10))
    assert "queue full: 3 requests waiting (--max-num-waiting); the estimated wait is 1 s" in str(error)
    assert error.retry_after_s == 1.0
    assert dict(waiting.admission.rejected) == {"max_num_waiting": 1}


def test_those_that_free_rows_are_there_for_do_not_count() -> None:
    waiting = make(3, 1000)
    for _ in range(5):
        waiting.add(newcomer(1), num_free_rows=2)
    assert "queue full: 3 requests waiting" in str(refused(waiting, newcomer(1), num_free_rows=2))


def test_the_bound_of_tokens_is_exact() -> None:
    waiting = make(100, 1000)
    first = waiting.add(newcomer(600))
    waiting.admission.make_room(newcomer(400), 0, 0.0)
    assert "queue full: 600 prompt tokens waiting, and this request has 401" in str(
        refused(waiting, newcomer(401))
    )
    assert dict(waiting.admission.rejected) == {"max_waiting_tokens": 1}
    waiting.start(first, 1.0)
    waiting.admission.make_room(newcomer(401), 0, 1.0)


def test_a_request_larger_than_the_bounds_is_taken_alone() -> None:
    waiting = make(3, 1000)
    waiting.add(newcomer(*[500] * 10))
    assert waiting.admission.num_waiting_tokens == 5000
    refused(waiting, newcomer(1))


def test_the_sequences_of_a_request_are_taken_together_or_not_at_all() -> None:
    waiting = make(4, 100)
    waiting.add(newcomer(10))
    assert "this one has 4 sequences (--max-num-waiting)" in str(refused(waiting, newcomer(1, 1, 1, 1)))
    assert "this request has 91 (--max-waiting-tokens)" in str(refused(waiting, newcomer(45, 46)))
    waiting.add(newcomer(30, 30, 30))
    assert (waiting.admission.num_waiting, waiting.admission.num_waiting_tokens) == (4, 100)


def test_what_has_begun_elsewhere_may_wait_beyond_the_bounds_up_to_twice() -> None:
    waiting = make(2, 100)
    waiting.add(newcomer(40))
    waiting.add(newcomer(40))
    for _ in range(2):
        waiting.add(newcomer(40, has_begun=True))
    refused(waiting, newcomer(40, has_begun=True))
    refused(waiting, newcomer(1))


def test_the_estimate_is_what_waits_over_what_leaves() -> None:
    waiting = make(21, 10**6)
    for second in range(20):
        for _ in range(2):
            last = waiting.add(newcomer(100), float(second))
        waiting.start(last, float(second) + 0.5)
    waiting.add(newcomer(100), 20.0)
    # 100 tokens leave a second, and 21 requests of 100 wait.
    assert waiting.admission.queue_time_s(20.0) == pytest.approx(21, abs=1)
    assert refused(waiting, newcomer(5), 20.0).retry_after_s == pytest.approx(21, abs=1)


def test_idle_time_does_not_make_the_engine_slow() -> None:
    waiting = make(100, 10**6)
    waiting.start(waiting.add(newcomer(1000)), 1.0)
    waiting.add(newcomer(3000), 10_000.0)
    assert waiting.admission.queue_time_s(10_000.0) == 3


def test_a_stuck_queue_is_estimated_at_the_bound() -> None:
    rate = DrainRate()
    rate.advance(0.0, True)
    rate.advance(100.0, True)
    assert rate.seconds_for(1) == MAX_RETRY_S
    assert rate.seconds_for(0) == 1


def test_requests_given_up_do_not_count_as_served() -> None:
    waiting = make(100, 10**6)
    waiting.add(newcomer(500))
    waiting.give_up(waiting.add(newcomer(500)), 10.0)
    assert waiting.admission.num_waiting_tokens == 500
    assert waiting.admission.queue_time_s(10.0) == MAX_RETRY_S


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "start", "give up", "ask"]), st.integers(1, 10**9), st.floats(0, 1e6)
        ),
        max_size=40,
    )
)
def test_the_estimate_is_always_a_whole_number_within_its_bounds(
    events: list[tuple[str, int, float]],
) -> None:
    waiting, now_s, added = make(100, 10**12), 0.0, []
    for kind, num_tokens, passed_s in events:
        now_s += passed_s
        if kind == "add":
            added.append((num_tokens, waiting.add(newcomer(num_tokens), now_s)))
        elif kind != "ask" and added:
            (waiting.start if kind == "start" else waiting.give_up)(added.pop()[1], now_s)
        estimate = waiting.admission.queue_time_s(now_s)
        assert isinstance(estimate, int)
        assert 1 <= estimate <= MAX_RETRY_S
        assert waiting.admission.num_waiting_tokens == sum(num_tokens for num_tokens, _ in added)
