"""Events are found however their bytes are cut."""

from __future__ import annotations

import pytest

from splitserve.client.http import event_reader
from splitserve.client.http.errors import ApiError
from splitserve.client.http.event_reader import EventReader

STREAM = b': ping\n\ndata: {"a":1}\n\nevent: x\r\ndata:two\r\ndata: lines\r\n\r\n\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize("cut", range(len(STREAM)))
def test_a_stream_has_the_same_events_wherever_it_is_cut(cut: int) -> None:
    reader = EventReader()
    events = reader.feed(STREAM[:cut]) + reader.feed(STREAM[cut:])
    assert events == [b'{"a":1}', b"two\nlines"]
    assert reader.is_done


def test_an_event_that_is_not_over_is_none() -> None:
    reader = EventReader()
    assert reader.feed(b"data: a\n") == []
    assert not reader.is_done
    assert reader.feed(b"\n") == [b"a"]


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_reader, "MAX_EVENT_BYTES", 10)
    with pytest.raises(ApiError, match="larger than"):
        EventReader().feed(b"data: 0123456789")
