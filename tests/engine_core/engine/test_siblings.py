"""The sequences of one request: taken together or not at all, and given up together or not at all."""

from __future__ import annotations

import pytest

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.engine.core import EngineCore
from splitserve.engine_core.errors import ContextLengthError, InvalidRequestError, OverloadedError
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.messages import AddRequest, Finished, FinishReason
from splitserve.engine_core.sequence_sampling import SequenceSampling
from tests.engine_core.engine_driver import EngineDriver


def make_driver(**fields: object) -> EngineDriver:
    limits: dict[str, object] = {
        "max_num_seqs": 2,
        "max_num_batched_tokens": 16,
        "max_model_len": 64,
        "block_size": 4,
        "num_blocks": 64,
    }
    return EngineDriver(SchedulerConfig(**{**limits, **fields}))  # type: ignore[arg-type]


def message(handle: int, num_tokens: int = 4, max_tokens: int = 2, **fields: object) -> AddRequest:
    sampling = SequenceSampling(seed=0, max_tokens=max_tokens, ignore_eos=True)
    prompt = pack_int32([1 + handle % 9] * num_tokens)
    return AddRequest(handle, f"r{handle}", prompt, sampling, **fields)  # type: ignore[arg-type]


def ends(driver: EngineDriver) -> dict[int, Finished]:
    """Turn until nothing is open; returns how each request ended."""
    found: dict[int, Finished] = {}
    engine = driver.engine
    for _ in range(200):
        engine.expire()
        for outputs in engine.take_outputs().values():
            found |= {finished.handle: finished for finished in outputs.finished}
        if not engine.has_requests:
            return found
        if (step := engine.plan()) is not None:
            driver.executor.submit(step)
            driver.clock.advance(1.0)
            for output in driver.executor.receive():
                engine.apply(output)  # type: ignore[arg-type]
        engine.check_integrity()
    raise AssertionError("requests are still open")


def open_handles(engine: EngineCore) -> list[int]:
    return [request.handle for request in engine._requests.table]


def test_siblings_do_not_refuse_each_other() -> None:
    driver = make_driver(max_waiting_tokens=10, max_num_waiting=2)
    driver.engine.add(b"f", *[message(handle) for handle in range(4)])
    driver.engine.check_integrity()
    found = ends(driver)
    assert {end.reason for end in found.values()} == {FinishReason.LENGTH}
    assert len(found) == 4


@pytest.mark.parametrize("bounds", [{"max_waiting_tokens": 10}, {"max_num_waiting": 2}], ids=str)
def test_siblings_that_find_no_room_are_all_refused(bounds: dict[str, int]) -> None:
    driver = make_driver(**bounds)
    driver.engine.add(b"f", message(0), message(1))
    ends_of_rows = driver.engine.plan()
    assert ends_of_rows is not None
    driver.engine.add(b"f", message(2))
    with pytest.raises(OverloadedError):
        driver.engine.add(b"f", *[message(handle) for handle in (3, 4, 5)])
    driver.engine.check_integrity()
    assert open_handles(driver.engine) == [0, 1, 2]


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([message(0), message(1, num_tokens=64)], ContextLengthError),
        ([message(0), message(0)], InvalidRequestError),
        ([message(0), message(1, tenant="other")], InvalidRequestError),
        ([message(0), message(1, priority=1)], InvalidRequestError),
        ([message(handle) for handle in range(7)], InvalidRequestError),
    ],
    ids=["too long", "one handle twice", "two tenants", "two priorities", "more than run and wait"],
)
def test_a_sequence_that_is_refused_takes_its_siblings_along(
    messages: list[AddRequest], error: type[InvalidRequestError]
) -> None:
    engine = make_driver(max_num_waiting=4).engine
    with pytest.raises(error):
        engine.add(b"f", *messages)
    engine.check_integrity()
    assert not engine.has_requests


def test_no_queue_timeout_ends_a_request_of_which_a_sequence_has_begun() -> None:
    driver = make_driver(max_num_seqs=1)
    driver.engine.add(b"f", *[message(handle, max_tokens=6, queue_timeout_s=3.0) for handle in range(3)])
    assert {end.reason for end in ends(driver).values()} == {FinishReason.LENGTH}


def test_a_queue_timeout_ends_all_sequences_of_a_request_before_any_has_begun() -> None:
    driver = make_driver(max_num_seqs=1)
    driver.engine.add(b"f", message(9, max_tokens=8))
    driver.engine.plan()
    driver.engine.add(b"f", *[message(handle, queue_timeout_s=3.0) for handle in range(3)])
    driver.engine.plan()
    driver.clock.advance(3.0)
    driver.engine.expire()
    driver.engine.check_integrity()
    assert open_handles(driver.engine) == [9]
    assert driver.engine.queue_stats().timeouts == {"queue_timeout": 3}


def test_no_queue_timeout_ends_what_has_begun_in_an_earlier_step() -> None:
    driver = make_driver(max_num_seqs=1)
    driver.engine.add(b"f", message(0, max_tokens=8))
    driver.engine.plan()
    driver.engine.add(b"f", message(1, queue_timeout_s=3.0, continues=True))
    driver.clock.advance(9.0)
    driver.engine.expire()
    assert open_handles(driver.engine) == [0, 1]


def test_a_displaced_request_ends_with_429_and_nothing_of_it_runs() -> None:
    driver = make_driver(max_num_seqs=1, max_num_waiting=3)
    driver.engine.add(b"f", message(0, max_tokens=8, tenant="greedy"))
    driver.engine.plan()
    driver.engine.add(b"f", message(1, tenant="greedy"))
    driver.engine.add(b"f", message(2, tenant="greedy"), message(3, tenant="greedy"))
    driver.engine.add(b"f", message(4, tenant="modest"))
    driver.engine.check_integrity()
    assert open_handles(driver.engine) == [0, 1, 4]
    finished = driver.engine.take_outputs()[b"f"].finished
    assert [end.handle for end in finished] == [2, 3]
    for end in finished:
        assert (end.reason, end.error_code, end.error_status) == (FinishReason.ERROR, "overloaded", 429)
        assert end.retry_after_s >= 1
        assert "retry after that" in end.error_message
    assert driver.engine.queue_stats().rejected == {"max_num_waiting": 1}
