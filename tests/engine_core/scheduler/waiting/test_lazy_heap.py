from __future__ import annotations

from splitserve.engine_core.scheduler.waiting.lazy_heap import LazyHeap
from tests.engine_core.requests import make_request


def test_removed_entries_never_surface() -> None:
    heap: LazyHeap[int] = LazyHeap()
    requests = [make_request(arrival=i) for i in range(3)]
    for request in requests:
        heap.push(10 - request.arrival, request)
    heap.remove(requests[2])
    assert heap.peek() == (9, requests[1])
    assert len(heap) == 2


def test_a_request_can_leave_and_come_back() -> None:
    heap: LazyHeap[int] = LazyHeap()
    request = make_request()
    heap.push(1, request)
    heap.remove(request)
    assert heap.peek() is None
    heap.push(1, request)
    assert heap.peek() == (1, request)
    heap.remove(request)
    assert heap.peek() is None


def test_removing_what_is_not_there_is_ignored() -> None:
    heap: LazyHeap[int] = LazyHeap()
    heap.remove(make_request())
    assert len(heap) == 0


def test_buried_entries_are_swept_out() -> None:
    heap: LazyHeap[int] = LazyHeap()
    heap.push(0, make_request(arrival=0))
    for arrival in range(1, 10_000):
        request = make_request(arrival=arrival)
        heap.push(arrival, request)
        heap.remove(request)
    assert len(heap._heap) <= 2 * len(heap) + 65
