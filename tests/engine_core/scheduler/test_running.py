from __future__ import annotations

import numpy as np
import pytest

from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.request import Request, RequestState
from splitserve.engine_core.scheduler.running import RunningRows
from tests.engine_core.requests import make_request

BLOCK_SIZE = 4


def admit(running: RunningRows, request: Request) -> int:
    row = running.lowest_free_row()
    running.admit(row, request, step=1, num_cached_tokens=0)
    return row


def append(running: RunningRows, row: int, token_id: int) -> None:
    rows = np.array([row])
    positions = running.num_known_tokens[rows]
    running.append_tokens(rows, positions, np.array([token_id], np.int32))
    running.num_tokens[row] += 1


def test_rows_are_taken_from_the_lowest() -> None:
    running = RunningRows(3, BLOCK_SIZE)
    assert [admit(running, make_request(arrival=i)) for i in range(3)] == [0, 1, 2]
    running.release(1)
    running.release(0)
    assert admit(running, make_request(arrival=3)) == 0
    running.check_integrity()


def test_rows_are_ordered_by_priority_then_arrival() -> None:
    running = RunningRows(4, BLOCK_SIZE)
    for arrival, priority in enumerate([1, 0, 1, -1]):
        admit(running, make_request(arrival=arrival, priority=priority))
    assert running.order.tolist() == [3, 1, 0, 2]
    running.release(1)
    assert running.order.tolist() == [3, 0, 2]
    running.check_integrity()


def test_sampled_tokens_reach_the_request_when_a_block_is_full() -> None:
    running = RunningRows(1, BLOCK_SIZE)
    request = make_request([1, 2, 3, 4, 5])
    row = admit(running, request)
    for token_id in (6, 7):
        append(running, row, token_id)
    assert request.num_stored_tokens == 5
    append(running, row, 8)
    assert unpack_int32(bytes(request.token_ids)).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    append(running, row, 9)
    assert request.num_stored_tokens == 8
    running.check_integrity()


@pytest.mark.parametrize("num_sampled", range(10))
def test_flushing_the_tail_gives_every_token_once(num_sampled: int) -> None:
    running = RunningRows(1, BLOCK_SIZE)
    request = make_request([1, 2, 3])
    row = admit(running, request)
    for token_id in range(num_sampled):
        append(running, row, token_id)
    running.flush_tail(row)
    running.flush_tail(row)
    assert unpack_int32(bytes(request.token_ids)).tolist() == [1, 2, 3, *range(num_sampled)]


def test_a_released_row_keeps_nothing_of_its_request() -> None:
    running = RunningRows(1, BLOCK_SIZE)
    request = make_request([1, 2, 3])
    row = admit(running, request)
    append(running, row, 4)
    assert running.release(row) is request
    assert request.row == -1
    assert running.num_free_rows == 1
    request.state = RequestState.WAITING
    other = make_request([7], arrival=1)
    admit(running, other)
    append(running, row, 8)
    running.flush_tail(row)
    assert unpack_int32(bytes(other.token_ids)).tolist() == [7, 8]


@pytest.mark.parametrize(
    "column", ["num_known_tokens", "num_computed_tokens", "handles", "num_prompt_tokens"]
)
def test_integrity_finds_a_wrong_column(column: str) -> None:
    running = RunningRows(2, BLOCK_SIZE)
    row = admit(running, make_request([1, 2, 3]))
    running.check_integrity()
    getattr(running, column)[row] += 5
    with pytest.raises(IntegrityError):
        running.check_integrity()


def test_integrity_finds_a_row_missing_from_the_order() -> None:
    running = RunningRows(2, BLOCK_SIZE)
    admit(running, make_request())
    running._num_running = 0
    with pytest.raises(IntegrityError, match="order"):
        running.check_integrity()
