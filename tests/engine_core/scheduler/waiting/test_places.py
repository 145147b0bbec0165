"""Who makes room in a full queue: whoever holds most, and nobody for more than the newcomer's share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.engine_core.errors import OverloadedError
from splitserve.engine_core.request import Request, Siblings
from splitserve.engine_core.scheduler.waiting.places import QueueBound
from splitserve.engine_core.scheduler.waiting.queue_admission import MAX_DISPLACED, QueueAdmission
from tests.engine_core.waiting import Waiting, newcomer


def make(max_num_waiting: int, max_waiting_tokens: int = 10**6, **weights: int) -> Waiting:
    return Waiting(QueueAdmission(max_num_waiting, max_waiting_tokens, weights))


def fill(waiting: Waiting, tenant: str, number: int, num_tokens: int = 1, **fields: object) -> list[Siblings]:
    """Let a tenant wait with so many requests of one sequence."""
    added = [newcomer(num_tokens, tenant=tenant, **fields) for _ in range(number)]  # type: ignore[arg-type]
    for siblings in added:
        waiting.add(siblings)
    return added


def displaced(waiting: Waiting, siblings: Siblings) -> list[Siblings]:
    return [each.siblings for each in waiting.displacing(siblings)]


def is_refused(waiting: Waiting, siblings: Siblings) -> bool:
    before = waiting.admission.num_waiting, waiting.admission.num_waiting_tokens
    try:
        waiting.admission.make_room(siblings, 0, 0.0)
    except OverloadedError:
        waiting.admission.check_integrity()
        assert (waiting.admission.num_waiting, waiting.admission.num_waiting_tokens) == before
        return True
    return False


def test_the_greediest_tenants_last_request_makes_room() -> None:
    waiting = make(6)
    greedy = fill(waiting, "greedy", 4)
    fill(waiting, "other", 2)
    assert displaced(waiting, newcomer(1, tenant="new")) == [greedy[3]]
    assert not greedy[3].waiting


def test_a_displaced_request_ends_like_one_that_is_refused_at_the_door() -> None:
    waiting = make(2)
    fill(waiting, "greedy", 2)
    (gone,) = waiting.admission.make_room(newcomer(1, tenant="new"), 0, 0.0)
    (end,) = gone.ends()
    assert (end.error_code, end.error_status, end.retry_after_s) == ("overloaded", 429, 1.0)
    assert "(--max-num-waiting); the estimated wait is 1 s, retry after that" in end.error_message
    assert dict(waiting.admission.rejected) == {"max_num_waiting": 1}


def test_tenants_that_hold_alike_leave_each_other_alone() -> None:
    waiting = make(4)
    fill(waiting, "a", 2)
    fill(waiting, "b", 2)
    for tenant in ("a", "b"):
        assert is_refused(waiting, newcomer(1, tenant=tenant))
    # With one place it would hold as many as the others are left with.
    assert not is_refused(waiting, newcomer(1, tenant="c"))


def test_a_tenant_of_weight_three_holds_three_times_as_many() -> None:
    waiting = make(8, heavy=3)
    fill(waiting, "light", 8)
    for _ in range(6):
        assert len(displaced(waiting, newcomer(1, tenant="heavy"))) == 1
    assert is_refused(waiting, newcomer(1, tenant="heavy"))
    assert is_refused(waiting, newcomer(1, tenant="light"))


def test_the_frontends_of_a_tenant_share_its_places() -> None:
    waiting = make(4)
    crowded = fill(waiting, "", 4, frontend=b"crowded")
    assert displaced(waiting, newcomer(1, frontend=b"other")) == [crowded[3]]
    assert displaced(waiting, newcomer(1, frontend=b"other")) == [crowded[2]]
    assert is_refused(waiting, newcomer(1, frontend=b"other"))


def test_of_the_greediest_tenant_the_greediest_frontend_makes_room() -> None:
    waiting = make(6)
    (lone,) = fill(waiting, "greedy", 1, frontend=b"a")
    crowd = fill(waiting, "greedy", 5, frontend=b"b")
    assert displaced(waiting, newcomer(1, tenant="new", frontend=b"a")) == [crowd[4]]
    assert lone.waiting


def test_a_more_urgent_request_takes_the_place_of_its_tenants_least_urgent() -> None:
    waiting = make(3)
    fill(waiting, "", 1, priority=0)
    late, later = fill(waiting, "", 2, priority=5)
    assert displaced(waiting, newcomer(1, priority=1)) == [later]
    assert displaced(waiting, newcomer(1, priority=4)) == [late]
    assert is_refused(waiting, newcomer(1, priority=4))


def test_the_one_that_would_be_served_last_makes_room() -> None:
    waiting = make(3)
    fill(waiting, "greedy", 1, priority=1)
    (last,) = fill(waiting, "greedy", 1, priority=7)
    fill(waiting, "greedy", 1, priority=1)
    assert displaced(waiting, newcomer(1, tenant="new")) == [last]


def test_what_has_begun_is_never_asked_to_leave() -> None:
    waiting = make(4)
    listed = newcomer(1, 1, 1, tenant="greedy")
    first, *_ = waiting.add(listed)
    waiting.start([first])
    fill(waiting, "greedy", 1, has_begun=True)
    fill(waiting, "greedy", 1)
    assert len(displaced(waiting, newcomer(1, tenant="new"))) == 1
    assert is_refused(waiting, newcomer(1, tenant="other"))
    assert len(listed.waiting) == 2


def test_all_sequences_of_a_request_leave_together() -> None:
    waiting = make(5)
    fill(waiting, "greedy", 2)
    listed = newcomer(1, 1, 1, tenant="greedy")
    waiting.add(listed)
    assert displaced(waiting, newcomer(1, 1, tenant="new")) == [listed]
    assert not listed.waiting


def test_tokens_are_shared_as_places_are() -> None:
    waiting = make(100, 1000)
    long = fill(waiting, "long", 2, num_tokens=500)
    assert displaced(waiting, newcomer(300, tenant="new")) == [long[1]]
    # Many short requests hold few tokens: by tokens the long prompt goes first.
    fill(waiting, "many", 20, num_tokens=10)
    assert displaced(waiting, newcomer(200, tenant="other")) == [long[0]]


def test_what_would_not_make_room_enough_stays() -> None:
    waiting = make(100, 100)
    fill(waiting, "a", 1, num_tokens=40)
    fill(waiting, "a", 1, num_tokens=30)
    fill(waiting, "b", 1, num_tokens=30)
    # The last of a would leave for it, and the next would not.
    assert is_refused(waiting, newcomer(60, tenant="new"))
    assert waiting.admission.num_waiting == 3


def test_looking_for_more_than_a_share_in_vain_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = make(1000, 1000)
    fill(waiting, "a", 500)
    fill(waiting, "b", 500)
    choices = []
    places = waiting.admission._places
    choose = places.choose
    monkeypatch.setattr(places, "choose", lambda *asked: (choices.append(asked), choose(*asked))[1])
    assert is_refused(waiting, newcomer(400, tenant="new"))
    assert len(choices) == MAX_DISPLACED + 1
    # Within its share as many leave as it takes.
    assert len(displaced(waiting, newcomer(333, tenant="new"))) == 333


TENANTS = ("", "a", "b", "c")
WEIGHTS = {"a": 3, "b": 2}
MAX_WAITING, MAX_TOKENS = 12, 100

ARRIVALS = st.builds(
    lambda sizes, *rest: (sizes, *rest),
    st.lists(st.integers(1, 40), min_size=1, max_size=3),
    st.sampled_from(TENANTS),
    st.sampled_from([b"f", b"g"]),
    st.integers(0, 2),
    st.booleans(),
)
EVENTS = st.one_of(ARRIVALS, ARRIVALS, st.tuples(st.sampled_from(["start", "give up"]), st.integers(0, 50)))


@given(st.lists(EVENTS, max_size=60))
def test_bounds_always_hold_and_nobody_under_its_share_is_refused(events: list[tuple]) -> None:
    waiting = Waiting(QueueAdmission(MAX_WAITING, MAX_TOKENS, WEIGHTS))
    here: list[Request] = []
    for event in events:
        if len(event) == 2:
            if here:
                request = here.pop(event[1] % len(here))
                (waiting.start if event[0] == "start" else waiting.give_up)([request])
            continue
        sizes, tenant, frontend, priority, has_begun = event
        asked = newcomer(*sizes, tenant=tenant, frontend=frontend, priority=priority, has_begun=has_begun)
        was_empty = not here
        try:
            left = waiting.displacing(asked)
        except OverloadedError:
            _check_refusal(here, asked)
            continue
        gone = {id(each.siblings) for each in left}
        assert not any(request.siblings.has_begun for request in here if id(request.siblings) in gone)
        here = [request for request in here if id(request.siblings) not in gone]
        factor = 2 if asked.has_begun else 1
        here += asked.waiting.values()
        if not was_empty and len(here) > len(asked.waiting):
            assert len(here) <= MAX_WAITING * factor
            assert sum(request.num_stored_tokens for request in here) <= MAX_TOKENS * factor
    held = waiting.admission.num_waiting, waiting.admission.num_waiting_tokens
    assert held == (len(here), sum(request.num_stored_tokens for request in here))


def _check_refusal(here: list[Request], asked: Siblings) -> None:
    """Its tenant would have more than its share of places or tokens, unless what has begun holds the rest."""
    assert here, "alone it may exceed the bounds"
    reasons = []
    for bound, limit in ((QueueBound.REQUESTS, MAX_WAITING), (QueueBound.TOKENS, MAX_TOKENS)):
        held = {tenant: _held(here, tenant, bound) for tenant in TENANTS}
        own = held[asked.tenant] + asked.sizes[bound]
        weights = sum(WEIGHTS.get(t, 1) for t in TENANTS if held[t] or t == asked.tenant)
        within_share = own * weights <= limit * WEIGHTS.get(asked.tenant, 1)
        begun = sum(_size(request, bound) for request in here if request.siblings.has_begun)
        reasons.append((within_share, begun))
    assert any(not within_share or begun for within_share, begun in reasons)


def _held(here: list[Request], tenant: str, bound: QueueBound) -> int:
    return sum(_size(request, bound) for request in here if request.siblings.tenant == tenant)


def _size(request: Request, bound: QueueBound) -> int:
    return 1 if bound is QueueBound.REQUESTS else request.num_stored_tokens
