"""Which messages are one request, whatever comes between them."""

from __future__ import annotations

from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.messages import AddRequest
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.engine_core.server.arrivals import Arrivals


def message(handle: int, *, more: bool = False) -> AddRequest:
    return AddRequest(handle, "r", pack_int32([1]), SequenceSampling(seed=0), more=more)


def handles(messages: list[AddRequest]) -> list[int]:
    return [each.handle for each in messages]


def test_a_message_with_no_more_to_come_is_a_request() -> None:
    assert handles(Arrivals(3).take(b"f", message(1))) == [1]


def test_a_request_is_complete_with_its_last_sequence() -> None:
    arrivals = Arrivals(3)
    assert arrivals.take(b"f", message(1, more=True)) == []
    assert handles(arrivals.take(b"other", message(7))) == [7]
    assert arrivals.take(b"f", message(2, more=True)) == []
    assert handles(arrivals.take(b"f", message(3))) == [1, 2, 3]
    assert handles(arrivals.take(b"f", message(4))) == [4]


def test_what_is_given_up_before_its_end_is_no_part_of_the_next() -> None:
    arrivals = Arrivals(3)
    arrivals.take(b"f", message(1, more=True))
    arrivals.abort(b"f", [9])
    arrivals.abort(b"other", [1])
    arrivals.take(b"f", message(2, more=True))
    arrivals.abort(b"f", [1])
    assert handles(arrivals.take(b"f", message(3))) == [3]


def test_a_frontend_that_leaves_leaves_nothing() -> None:
    arrivals = Arrivals(3)
    arrivals.take(b"f", message(1, more=True))
    arrivals.drop(b"f")
    assert handles(arrivals.take(b"f", message(2))) == [2]


def test_a_request_without_end_is_cut_beyond_the_bound() -> None:
    arrivals = Arrivals(3)
    found = [arrivals.take(b"f", message(handle, more=True)) for handle in range(9)]
    assert [handles(each) for each in found if each] == [[0, 1, 2, 3], [4, 5, 6, 7]]
