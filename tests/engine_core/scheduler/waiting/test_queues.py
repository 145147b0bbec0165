from __future__ import annotations

import pytest

from splitserve.engine_core.request import Request
from splitserve.engine_core.scheduler.waiting.policies import make_queue
from splitserve.engine_core.scheduler.waiting.queues import WaitingQueue
from tests.engine_core.requests import make_request


def drain(queue: WaitingQueue) -> list[int]:
    arrivals = []
    while (request := queue.head()) is not None:
        queue.remove(request)
        arrivals.append(request.arrival)
    return arrivals


def requests_with(priorities: list[int]) -> list[Request]:
    return [make_request(arrival=i, priority=priority) for i, priority in enumerate(priorities)]


@pytest.mark.parametrize(("policy", "expected"), [("fcfs", [0, 1, 2, 3]), ("priority", [1, 3, 0, 2])])
def test_heads_come_in_the_order_of_the_policy(policy: str, expected: list[int]) -> None:
    queue = make_queue(policy)
    for request in requests_with([1, 0, 1, 0]):
        queue.add(request)
    assert len(queue) == 4
    assert drain(queue) == expected


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_preempted_request_comes_before_later_arrivals(policy: str) -> None:
    queue = make_queue(policy)
    requests = requests_with([0, 0, 0, 0])
    for request in requests:
        queue.add(request)
    for _ in range(2):
        head = queue.head()
        assert head is not None
        queue.remove(head)
    # Preempted from the end of the running order, so the later one returns first.
    queue.requeue(requests[1])
    queue.requeue(requests[0])
    assert drain(queue) == [0, 1, 2, 3]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_requests_can_leave_from_the_middle(policy: str) -> None:
    queue = make_queue(policy)
    requests = requests_with([0, 0, 0])
    for request in requests:
        queue.add(request)
    queue.remove(requests[1])
    assert len(queue) == 2
    assert {request.arrival for request in queue} == {0, 2}
    assert drain(queue) == [0, 2]


def test_a_worse_priority_waits_for_a_better_one_that_came_later() -> None:
    queue = make_queue("priority")
    old, new = make_request(arrival=0, priority=5), make_request(arrival=1, priority=-5)
    queue.add(old)
    queue.add(new)
    assert queue.head() is new


def order_of(queue: WaitingQueue) -> list[int]:
    return [request.arrival for request in sorted(queue, key=queue.position)]


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_what_is_set_aside_is_passed_and_comes_back_to_its_place(policy: str) -> None:
    queue = make_queue(policy, 8)
    for request in requests_with([0, 0, 0, 0]):
        queue.add(request)
    passed = []
    for _ in range(2):
        head = queue.head()
        assert head is not None
        queue.set_aside(head)
        passed.append(head.arrival)
    assert passed == [0, 1]
    third = queue.head()
    assert third is not None
    assert third.arrival == 2
    queue.remove(third)
    queue.restore()
    assert len(queue) == 3
    assert order_of(queue) == [0, 1, 3]
    # The one that passed is preempted: those it passed are older.
    if policy != "fair":
        queue.requeue(third)
        assert drain(queue) == [0, 1, 2, 3]


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_setting_all_aside_again_and_again_leaves_the_queue_as_it_was(policy: str) -> None:
    queue = make_queue(policy, 8)
    for request in requests_with([0, 0, 0]):
        request.tenant = "ab"[request.arrival % 2]
        queue.add(request)
    expected = [0, 1, 2] if policy != "fair" else [0, 2, 1]
    for _ in range(200):
        passed = []
        while (head := queue.head()) is not None:
            queue.set_aside(head)
            passed.append(head.arrival)
        assert sorted(passed) == [0, 1, 2]
        queue.restore()
    assert len(queue) == 3
    assert sorted(drain(queue)) == [0, 1, 2]
    assert passed == expected
