from __future__ import annotations

import numpy as np

from splitserve.engine_core.ipc.codec import pack_int32, pack_int64, unpack_int32, unpack_int64
from splitserve.engine_core.ipc.messages import Finished, FinishReason, Started
from splitserve.engine_core.scheduler.output import GATHER_S, NEVER, OutputCollector, Recipients, TokenColumns
from splitserve.engine_core.scheduler.running import RunningRows
from tests.engine_core.requests import make_request


def columns(handles: list[int], *, urgent: bool = True) -> TokenColumns:
    count = len(handles)
    return TokenColumns(
        0,
        count,
        pack_int64(handles),
        pack_int32(range(count)),
        pack_int32([100 + i for i in range(count)]),
        urgent,
    )


def running_for(
    frontend_idx: list[int], handles: list[int], streaming: set[int] | None = None
) -> RunningRows:
    running = RunningRows(len(handles), 4)
    for row, (idx, handle) in enumerate(zip(frontend_idx, handles, strict=True)):
        request = make_request([1, 2, 3], arrival=row)
        request.handle, request.frontend_idx = handle, idx
        request.streams = streaming is None or handle in streaming
        running.admit(row, request, step=1, num_cached_tokens=0)
    return running


def test_tokens_are_split_by_frontend_in_order() -> None:
    running = running_for([1, 0, 1, 2, 0], [10, 20, 30, 40, 50])
    positions = np.array([3, 4, 5, 6, 7])
    parts = Recipients(running, running.order).split(positions, np.arange(5, dtype=np.int32))
    assert [(part.frontend_idx, part.num_tokens) for part in parts] == [(0, 2), (1, 2), (2, 1)]
    assert [unpack_int64(part.handles).tolist() for part in parts] == [[20, 50], [10, 30], [40]]
    assert [unpack_int32(part.token_ids).tolist() for part in parts] == [[1, 4], [0, 2], [3]]
    assert [unpack_int32(part.token_indices).tolist() for part in parts] == [[1, 4], [0, 2], [3]]


def test_one_frontend_gets_everything_and_no_rows_give_nothing() -> None:
    running = running_for([3, 3], [1, 2])
    (part,) = Recipients(running, running.order).split(np.array([3, 3]), np.array([7, 8], np.int32))
    assert (part.frontend_idx, unpack_int64(part.handles).tolist()) == (3, [1, 2])
    assert unpack_int32(part.token_ids).tolist() == [7, 8]
    nobody = Recipients(running, running.order[:0])
    assert nobody.split(np.array([], np.int64), np.array([], np.int32)) == []


def test_messages_hold_all_steps_since_the_last_take() -> None:
    collector = OutputCollector(epoch=9)
    collector.add_tokens(b"a", columns([2**40, 2]))
    collector.add_tokens(b"a", columns([2]))
    collector.add_started(b"a", Started(2, 0, 0.5))
    collector.add_finished(b"b", Finished(3, FinishReason.LENGTH))
    messages = collector.take(0.0)
    assert messages.keys() == {b"a", b"b"}
    assert messages[b"a"].epoch == 9
    assert unpack_int64(messages[b"a"].handles).tolist() == [2**40, 2, 2]
    assert unpack_int32(messages[b"a"].token_indices).tolist() == [100, 101, 100]
    assert messages[b"a"].started == [Started(2, 0, 0.5)]
    assert messages[b"b"].handles == b""
    assert messages[b"b"].finished == [Finished(3, FinishReason.LENGTH)]
    assert collector.take(0.0) == {}


def test_a_dropped_frontend_hears_nothing() -> None:
    collector = OutputCollector(epoch=9)
    collector.add_started(b"a", Started(2, 0, 0.5))
    collector.drop(b"a")
    collector.drop(b"unknown")
    assert collector.take(0.0) == {}


def test_tokens_that_can_wait_are_gathered_until_their_time() -> None:
    collector = OutputCollector(epoch=9)
    collector.add_tokens(b"a", columns([1], urgent=False))
    assert collector.take(5.0) == {}
    assert collector.due_s == 5.0 + GATHER_S
    collector.add_tokens(b"a", columns([1], urgent=False))
    assert collector.take(5.0 + GATHER_S / 2) == {}
    messages = collector.take(collector.due_s)
    assert unpack_int64(messages[b"a"].handles).tolist() == [1, 1]
    assert collector.due_s == NEVER


def test_what_somebody_waits_for_takes_all_of_its_frontend_along() -> None:
    collector = OutputCollector(epoch=9)
    for frontend in (b"a", b"b"):
        collector.add_tokens(frontend, columns([1], urgent=False))
    assert collector.take(0.0) == {}
    collector.add_tokens(b"a", columns([2]))
    assert [unpack_int64(of.handles).tolist() for of in collector.take(0.0).values()] == [[1, 2]]
    collector.add_finished(b"b", Finished(1, FinishReason.LENGTH))
    assert [unpack_int64(of.handles).tolist() for of in collector.take(0.0).values()] == [[1]]


def test_first_tokens_and_those_of_streams_are_urgent() -> None:
    running = running_for([0, 0, 1, 1, 2], [10, 20, 30, 40, 50], streaming={40})
    parts = Recipients(running, running.order).split(np.array([9] * 4 + [3]), np.arange(5, dtype=np.int32))
    assert [part.urgent for part in parts] == [False, True, True]
