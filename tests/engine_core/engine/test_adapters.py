"""Who waits for an adapter, which one gives way, and what a refusal, a call or a lost worker means."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

import msgspec
import pytest

from splitserve.engine_core.engine.adapters.owner import AdapterPlan, Adapters
from splitserve.engine_core.errors import InvalidRequestError, WorkerError
from splitserve.engine_core.ipc.messages import WaitReason
from splitserve.engine_core.ipc.worker_messages import AdapterLoaded, LoadAdapter
from splitserve.engine_core.request import Request
from tests.engine_core.engine.test_start_over import CONFIG
from tests.engine_core.engine_driver import EngineDriver
from tests.engine_core.requests import make_request

NAMES = ("a", "b", "c")


def make(num_slots: int, names: Iterable[str] = NAMES) -> Adapters:
    keys = count()
    return Adapters(AdapterPlan(num_slots, {name: f"/{name}" for name in names}), lambda: str(next(keys)))


def request_of(adapters: Adapters, name: str) -> Request:
    request = make_request()
    request.adapter = adapters.find(name, "")
    return request


def answer(adapters: Adapters, sent: Iterable[LoadAdapter], **fields: str) -> None:
    for message in sent:
        adapters.answered(AdapterLoaded(message.number, **({"digest": message.path} | fields)), [])


def sent(adapters: Adapters, running: Iterable[Request] = ()) -> list[tuple[int, str]]:
    """Have the workers load what is wanted; return slots and paths."""
    messages = adapters.take_unsent(lambda: running)
    answer(adapters, messages)
    return [(message.slot, message.path) for message in messages]


def want(adapters: Adapters, *names: str) -> None:
    adapters.want([request_of(adapters, name) for name in names])


def test_those_that_fit_are_loaded_at_once_and_others_when_they_are_asked_for() -> None:
    adapters = make(2)
    assert sent(adapters) == [(0, "/a"), (1, "/b")]
    want(adapters, "a", "b")
    assert sent(adapters) == []
    adapters.find("a", "").last_used = 5
    want(adapters, "c")
    # b was used longer ago.
    assert sent(adapters) == [(1, "/c")]
    want(adapters, "b")
    assert sent(adapters) == [(1, "/b")]


def test_rows_keep_their_adapter_and_no_others_begin_with_the_one_that_is_to_leave() -> None:
    adapters = make(2)
    sent(adapters)
    running = [request_of(adapters, "a"), request_of(adapters, "b")]
    a, b = (request.adapter for request in running)
    assert a is not None
    assert b is not None
    a.last_used, b.last_used = 3, 2
    want(adapters, "c")
    assert sent(adapters, running) == []
    assert (a.takes_rows, b.takes_rows) == (True, False)
    assert sent(adapters, running) == []
    assert sent(adapters, running[:1]) == [(1, "/c")]
    assert adapters.find("c", "").takes_rows


def test_one_that_had_to_leave_comes_back_in_its_turn() -> None:
    adapters = make(1)
    sent(adapters)
    running = [request_of(adapters, "a")]
    want(adapters, "b")
    assert sent(adapters, running) == []
    a = running[0].adapter
    assert a is not None
    # A request that waits since it is to leave.
    adapters.wanted[a] = None
    assert sent(adapters) == [(0, "/b")]
    assert sent(adapters) == [(0, "/a")]
    want(adapters, "b")
    assert sent(adapters, running) == []
    del adapters.wanted[next(iter(adapters.wanted))]
    # Whoever it was to make room for is gone.
    adapters.wanted[a] = None
    assert sent(adapters, running) == []
    assert a.takes_rows


def test_a_request_names_what_is_there_and_what_it_began_with() -> None:
    adapters = make(1, ["a"])
    assert adapters.find("", "") is None
    assert adapters.find("a", "other") is not None
    sent(adapters)
    assert adapters.find("a", "/a") is not None
    for name, digest, status in (("x", "", 404), ("a", "other", 409)):
        with pytest.raises(InvalidRequestError) as refused:
            adapters.find(name, digest)
        assert refused.value.status == status


def test_a_call_is_answered_when_the_workers_have_read_it_and_only_then_others_may_name_it() -> None:
    adapters = make(1, [])
    told: list[str] = []
    adapters.load("new", "/new", told.append)
    for name in ("new", "", "with space", "a=b", "/x", "x" * 201):
        with pytest.raises(InvalidRequestError):
            adapters.load(name, "/new", told.append)
    (message,) = adapters.take_unsent(lambda: [])
    assert adapters.listed() == []
    answer(adapters, [message])
    assert told == [""]
    assert [(info.name, info.digest) for info in adapters.listed()] == [("new", "/new")]
    adapters.load("bad", "/bad", told.append)
    answer(adapters, adapters.take_unsent(lambda: []), error="truncated")
    assert told == ["", "truncated"]
    assert [info.name for info in adapters.listed()] == ["new"]


def test_an_adapter_that_was_unloaded_gives_way_first_and_comes_back_as_another() -> None:
    adapters = make(2, ["a", "b"])
    sent(adapters)
    a = adapters.find("a", "")
    assert a is not None
    a.last_used = 9
    adapters.unload("a")
    with pytest.raises(InvalidRequestError, match="no adapter 'a' is loaded"):
        adapters.unload("a")
    adapters.load("a", "/other", lambda problem: None)
    assert sent(adapters) == [(0, "/other")]
    again = adapters.find("a", "")
    assert again is not None
    assert again.key != a.key


def test_files_that_have_changed_since_are_refused() -> None:
    adapters = make(1, ["a", "b"])
    sent(adapters)
    want(adapters, "b")
    sent(adapters)
    request = request_of(adapters, "a")
    adapters.want([request])
    (message,) = adapters.take_unsent(lambda: [])
    (end,) = adapters.answered(AdapterLoaded(message.number, "other"), [request, make_request()])
    assert end.request is request
    assert (end.error_code, end.error_status) == ("adapter_failed", 500)
    assert "/a have changed" in end.error_message


def test_an_answer_to_nothing_is_the_workers_fault() -> None:
    with pytest.raises(WorkerError, match="adapter 7, which was not asked for"):
        make(1).answered(AdapterLoaded(7), [])


def test_what_a_lost_worker_had_is_loaded_again_for_those_who_wait() -> None:
    adapters = make(3, ["a", "b"])
    told: list[str] = []
    sent(adapters)
    adapters.load("new", "/new", told.append)
    adapters.take_unsent(lambda: [])
    adapters.start_over([request_of(adapters, "b")])
    assert sent(adapters) == [(0, "/new"), (1, "/b")]
    assert told == [""]


def drive(num_slots: int) -> EngineDriver:
    adapters = {name: f"/{name}" for name in NAMES}
    return EngineDriver(msgspec.structs.replace(CONFIG, num_adapter_slots=num_slots, adapters=adapters))


def test_requests_wait_for_their_adapter_and_others_overtake_them() -> None:
    driver = drive(1)
    waiting = driver.add([1, 2, 3], adapter="c", max_tokens=4, ignore_eos=True)
    plain = driver.add([1, 2, 3], max_tokens=4, ignore_eos=True)
    # What the workers are told after a step they do after it.
    driver.plan()
    assert (plain.started is not None, waiting.started is None) == (True, True)
    (info,) = driver.engine.explain([f"request-{waiting.handle}"], "")
    assert info.waits_for is WaitReason.ADAPTER
    driver.run()
    assert waiting.output == waiting.expected


def test_statistics_name_the_adapters_that_requests_use() -> None:
    driver = drive(1)
    assert driver.engine.queue_stats().max_loras == 1
    driver.add([1, 2, 3], adapter="c", max_tokens=4, ignore_eos=True)
    driver.add([1, 2, 3], adapter="b", max_tokens=4, ignore_eos=True)
    queue = driver.engine.queue_stats()
    assert (queue.running_adapters, queue.waiting_adapters) == ([], ["b", "c"])
    while not driver.engine.queue_stats().running_adapters:
        driver.turn()
    # One slot: the rows of one adapter at a time.
    queue = driver.engine.queue_stats()
    assert sorted([*queue.running_adapters, *queue.waiting_adapters]) == ["b", "c"]
    driver.run()
    assert driver.engine.queue_stats().running_adapters == []


def test_a_prefix_is_shared_by_requests_of_the_same_adapter_only() -> None:
    driver = drive(2)
    hits = []
    for adapter in ("", "a", "b", "a", "", "b"):
        tracked = driver.add(list(range(1, 20)), adapter=adapter)
        driver.run()
        assert tracked.started is not None
        hits.append(tracked.started.num_cached_tokens > 0)
    assert hits == [False, False, False, True, True, True]
    a = driver.engine.adapters.find("a", "")
    assert a is not None
    driver.engine.adapters.unload("a")
    driver.engine.adapters.load("a", a.path, lambda problem: None)
    for _ in range(2):
        driver.turn()
    again = driver.add(list(range(1, 20)), adapter="a")
    driver.run()
    assert again.started is not None
    assert again.started.num_cached_tokens == 0


def test_more_adapters_than_slots_are_all_served_while_workers_die() -> None:
    driver = drive(1)
    for i in range(9):
        driver.add([1 + i, 2, 3], adapter=NAMES[i % 3], max_tokens=6, ignore_eos=True)
    for _ in range(4):
        driver.turn()
    driver.lose_worker()
    driver.run()
