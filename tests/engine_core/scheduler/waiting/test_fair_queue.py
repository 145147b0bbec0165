"""The fair queue alone: who is the head after which service."""

from __future__ import annotations

import pytest

from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.request import Request
from splitserve.engine_core.scheduler.running import RunningRows
from splitserve.engine_core.scheduler.waiting.fair_queue import FairQueue
from splitserve.engine_core.scheduler.waiting.tenants import MAX_TENANTS, SHARED_SLOT, VIRTUAL_UNIT
from tests.engine_core.requests import make_request

NUM_ROWS = 4


class Bench:
    """A fair queue and rows; `admit` does what the scheduler does."""

    def __init__(self, **weights: int) -> None:
        self.queue = FairQueue(NUM_ROWS, weights)
        self.running = RunningRows(NUM_ROWS, 4)
        self._arrivals = 0

    def add(self, tenant: str, num_tokens: int = 10, priority: int = 0) -> Request:
        request = make_request([1] * num_tokens, arrival=self._arrivals, priority=0)
        self._arrivals += 1
        request.tenant, request.priority = tenant, priority
        self.queue.add(request)
        self.check()
        return request

    def admit(self, num_cached_tokens: int = 0) -> Request:
        self.queue.settle(self.running)
        request = self.queue.head()
        assert request is not None
        row = self.running.lowest_free_row()
        self.queue.remove(request)
        self.queue.admitted(request, row, num_cached_tokens)
        self.running.admit(row, request, step=1, num_cached_tokens=num_cached_tokens)
        request.was_started = True
        self.check()
        return request

    def compute(self, request: Request, num_tokens: int) -> None:
        self.running.num_computed_tokens[request.row] += num_tokens
        self.running.num_tokens[request.row] = self.running.num_computed_tokens[request.row]

    def release(self, request: Request) -> None:
        self.queue.released(request.row, int(self.running.num_computed_tokens[request.row]))
        self.running.release(request.row)

    def run(self, num_output_tokens: int = 0) -> Request:
        """Admit the head and let it run to its end."""
        request = self.admit()
        self.compute(request, request.num_stored_tokens + num_output_tokens)
        self.release(request)
        self.check()
        return request

    def charged(self, tenant_of: Request) -> float:
        return self.queue.counters.virtual(tenant_of.fair_slot) / VIRTUAL_UNIT

    def check(self) -> None:
        self.queue.check_integrity(self.running)


def test_the_tenant_with_the_least_service_is_next() -> None:
    bench = Bench()
    for _ in range(3):
        bench.add("big", num_tokens=20)
    for _ in range(6):
        bench.add("small", num_tokens=10)
    assert "".join(bench.run().tenant[0] for _ in range(9)) == "bssbssbss"


def test_a_weight_of_three_gets_three_times_the_tokens() -> None:
    bench = Bench(heavy=3)
    for _ in range(12):
        bench.add("light")
        bench.add("heavy")
    served = [bench.run().tenant for _ in range(12)]
    assert served.count("heavy") == 9


def test_output_tokens_count_when_they_are_computed() -> None:
    bench = Bench()
    for _ in range(2):
        bench.add("talks")
        bench.add("listens")
    first = bench.admit()
    assert first.tenant == "talks"
    assert bench.admit().tenant == "listens"
    bench.compute(first, 10 + 5)
    bench.queue.settle(bench.running)
    assert bench.charged(first) == 15
    assert [bench.admit().tenant for _ in range(2)] == ["listens", "talks"]


def test_cached_tokens_cost_nothing() -> None:
    bench = Bench()
    request = bench.add("a")
    bench.admit(num_cached_tokens=8)
    assert bench.charged(request) == 2


def test_a_preempted_request_comes_first_and_is_not_charged_again() -> None:
    bench = Bench()
    request = bench.add("a")
    bench.admit()
    bench.compute(request, 10)
    bench.add("b")
    bench.release(request)
    bench.queue.requeue(request)
    bench.check()
    assert len(bench.queue) == 2
    assert bench.queue.position(request) == 0
    assert bench.admit() is request
    bench.compute(request, 10)
    bench.queue.settle(bench.running)
    assert bench.charged(request) == 10


def test_an_idle_tenant_returns_level_with_those_who_wait() -> None:
    bench = Bench()
    away = bench.add("away")
    bench.run()
    for _ in range(20):
        bench.add("busy")
    for _ in range(10):
        bench.run()
    for _ in range(4):
        bench.add("away")
    served = [bench.run().tenant for _ in range(4)]
    assert served.count("away") == 2, "ninety tokens of absence earned nothing"
    assert bench.charged(away) >= 100


def test_a_debt_is_not_shed_by_leaving_for_a_moment() -> None:
    bench = Bench()
    bench.add("waits")
    greedy = bench.add("greedy", num_tokens=10)
    assert bench.admit().tenant == "waits"
    assert bench.admit() is greedy
    bench.compute(greedy, 10 + 500)
    bench.release(greedy)
    for _ in range(3):
        bench.add("waits")
    bench.add("greedy")
    assert bench.charged(greedy) == 510
    assert bench.queue.head() is not None
    assert bench.queue.head().tenant == "waits"


def test_priority_orders_within_a_tenant_only() -> None:
    bench = Bench()
    bench.add("a", priority=5)
    urgent = bench.add("a", priority=-5)
    bench.add("b", priority=9)
    assert bench.queue.position(urgent) == 0
    assert [(bench.run().tenant, bench.run().tenant) for _ in range(1)] == [("a", "b")]
    assert urgent.was_started


def test_requests_can_leave_from_the_middle_and_all_at_once() -> None:
    bench = Bench()
    first, second = bench.add("a"), bench.add("a")
    only = bench.add("b")
    bench.queue.remove(first)
    bench.check()
    assert bench.queue.head() is second
    assert bench.queue.is_held_back(only)
    assert bench.queue.num_held_back() == 1
    bench.queue.remove(second)
    assert bench.queue.head() is only
    assert not bench.queue.is_held_back(only)
    bench.queue.remove(only)
    bench.check()
    assert bench.queue.head() is None
    assert len(bench.queue) == 0
    assert bench.queue.num_held_back() == 0


def test_idle_tenants_make_room_and_the_others_share_a_counter() -> None:
    bench = Bench()
    kept = bench.add("kept")
    gone = bench.add("gone")
    bench.queue.remove(gone)
    others = [bench.add(f"t{i}") for i in range(MAX_TENANTS + 1)]
    counters = bench.queue.counters
    assert len(counters) == MAX_TENANTS
    assert kept.fair_slot == 0
    slots = [request.fair_slot for request in others]
    assert slots[-3:] == [1, SHARED_SLOT, SHARED_SLOT], "the idle tenant's slot goes first"
    assert len(set(slots)) == len(slots) - 1
    for request in others:
        bench.queue.remove(request)
    bench.check()
    assert bench.queue.head() is kept
    assert bench.add("late").fair_slot != SHARED_SLOT


def test_entries_of_tenants_that_come_and_go_are_swept() -> None:
    bench = Bench()
    bench.add("stays")
    for _ in range(500):
        bench.queue.remove(bench.add("flickers"))
    assert len(bench.queue._heap) <= 2 * 2 + 65


def test_a_broken_count_is_found() -> None:
    bench = Bench()
    bench.add("a")
    bench.queue.counters.open("a")
    with pytest.raises(IntegrityError, match="slot 0 counts 2 requests, 1 are in flight"):
        bench.check()
