from __future__ import annotations

import numpy as np

from engine_core.ipc.codec import unpack_int32, unpack_int64
from engine_core.ipc.messages import Finished, FinishReason, Started
from engine_core.scheduler.output import OutputCollector, TokenColumns


def columns(frontend_idx: list[int], handles: list[int]) -> TokenColumns:
    count = len(handles)
    return TokenColumns(
        np.array(frontend_idx, np.int64),
        np.array(handles, np.int64),
        np.arange(count, dtype=np.int32),
        np.arange(count) + 100,
    )


def test_tokens_are_split_by_frontend_in_order() -> None:
    parts = columns([1, 0, 1, 2, 0], [10, 20, 30, 40, 50]).split()
    assert [part.handles.tolist() for part in parts] == [[20, 50], [10, 30], [40]]
    assert [part.token_ids.tolist() for part in parts] == [[1, 4], [0, 2], [3]]
    assert [part.token_indices.tolist() for part in parts] == [[101, 104], [100, 102], [103]]


def test_one_frontend_is_not_copied_and_none_gives_nothing() -> None:
    tokens = columns([3, 3], [1, 2])
    assert tokens.split()[0] is tokens
    assert columns([], []).split() == []


def test_messages_hold_all_steps_since_the_last_take() -> None:
    collector = OutputCollector(epoch=9)
    collector.add_tokens(b"a", columns([0, 0], [2**40, 2]))
    collector.add_tokens(b"a", columns([0], [2]))
    collector.add_started(b"a", Started(2, 0, 0.5))
    collector.add_finished(b"b", Finished(3, FinishReason.LENGTH))
    messages = collector.take()
    assert messages.keys() == {b"a", b"b"}
    assert messages[b"a"].epoch == 9
    assert unpack_int64(messages[b"a"].handles).tolist() == [2**40, 2, 2]
    assert unpack_int32(messages[b"a"].token_indices).tolist() == [100, 101, 100]
    assert messages[b"a"].started == [Started(2, 0, 0.5)]
    assert messages[b"b"].handles == b""
    assert messages[b"b"].finished == [Finished(3, FinishReason.LENGTH)]
    assert collector.take() == {}


def test_a_dropped_frontend_hears_nothing() -> None:
    collector = OutputCollector(epoch=9)
    collector.add_started(b"a", Started(2, 0, 0.5))
    collector.drop(b"a")
    collector.drop(b"unknown")
    assert collector.take() == {}
