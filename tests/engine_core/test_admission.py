"""What the queue's bounds refuse, and how its estimate follows what leaves it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.admission import MAX_RETRY_S, Admission, DrainRate
from engine_core.errors import OverloadedError


def refused(admission: Admission, num_waiting: int, num_tokens: int, now_s: float = 0.0) -> OverloadedError:
    with pytest.raises(OverloadedError) as caught:
        admission.check(num_waiting, num_tokens, now_s)
    return caught.value


def test_the_bound_of_requests_is_exact() -> None:
    admission = Admission(3, 1000)
    admission.check(2, 10, 0.0)
    error = refused(admission, 3, 10)
    assert "3 requests wait already (--max-num-waiting); the queue takes about 1 s" in str(error)
    assert error.retry_after_s == 1.0
    assert dict(admission.rejected) == {"max_num_waiting": 1}


def test_the_bound_of_tokens_is_exact() -> None:
    admission = Admission(100, 1000)
    admission.added(600, 0.0)
    admission.check(1, 400, 0.0)
    assert "600 prompt tokens wait already and this request has 401" in str(refused(admission, 1, 401))
    assert dict(admission.rejected) == {"max_waiting_tokens": 1}
    admission.started(600, 1.0)
    admission.check(0, 401, 1.0)


def test_a_request_larger_than_the_bound_is_taken_alone() -> None:
    admission = Admission(100, 1000)
    admission.check(0, 5000, 0.0)
    admission.added(5000, 0.0)
    refused(admission, 1, 1)


def test_the_estimate_is_what_waits_over_what_leaves() -> None:
    admission = Admission(3, 10**6)
    for second in range(20):
        for _ in range(2):
            admission.added(100, float(second))
        admission.started(100, float(second) + 0.5)
    # 100 tokens leave a second, and 20 requests of 100 wait.
    assert admission.queue_time_s(20.0) == pytest.approx(20, abs=1)
    assert refused(admission, 3, 5, 20.0).retry_after_s == pytest.approx(20, abs=1)


def test_idle_time_does_not_make_the_engine_slow() -> None:
    admission = Admission(100, 10**6)
    admission.added(1000, 0.0)
    admission.started(1000, 1.0)
    admission.added(3000, 10_000.0)
    assert admission.queue_time_s(10_000.0) == 3


def test_a_stuck_queue_is_estimated_at_the_bound() -> None:
    rate = DrainRate()
    rate.advance(0.0, True)
    rate.advance(100.0, True)
    assert rate.seconds_for(1) == MAX_RETRY_S
    assert rate.seconds_for(0) == 1


def test_requests_given_up_do_not_count_as_served() -> None:
    admission = Admission(100, 10**6)
    admission.added(500, 0.0)
    admission.added(500, 0.0)
    admission.given_up(500, 10.0)
    assert admission.num_waiting_tokens == 500
    assert admission.queue_time_s(10.0) == MAX_RETRY_S


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
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
    admission, now_s, waiting = Admission(10, 10**12), 0.0, []
    for kind, num_tokens, passed_s in events:
        now_s += passed_s
        if kind == "add":
            waiting.append(num_tokens)
            admission.added(num_tokens, now_s)
        elif kind != "ask" and waiting:
            (admission.started if kind == "start" else admission.given_up)(waiting.pop(), now_s)
        estimate = admission.queue_time_s(now_s)
        assert isinstance(estimate, int)
        assert 1 <= estimate <= MAX_RETRY_S
        assert admission.num_waiting_tokens == sum(waiting)
