from __future__ import annotations

from splitserve.engine_core.kv_events.history import BatchHistory


def kept(history: BatchHistory) -> list[tuple[int, bytes]]:
    found, number = [], 0
    while (batch := history.first_from(number)) is not None:
        found.append((batch.number, batch.payload))
        number = batch.number + 1
    return found


def test_batches_are_numbered_from_zero() -> None:
    history = BatchHistory(10, 100)
    assert history.first_from(0) is None
    assert [history.append(b"a"), history.append(b"b")] == [0, 1]
    assert kept(history) == [(0, b"a"), (1, b"b")]
    assert history.first_from(2) is None
    assert history.first_from(2**64) is None


def test_the_oldest_go_when_there_are_too_many() -> None:
    history = BatchHistory(3, 100)
    for number in range(5):
        assert history.append(b"%d" % number) == number
    assert kept(history) == [(2, b"2"), (3, b"3"), (4, b"4")]
    assert history.first_from(-1) == (2, b"2")


def test_the_oldest_go_when_they_are_too_large() -> None:
    history = BatchHistory(10, 10)
    for size in (4, 4, 4, 6):
        history.append(bytes(size))
    assert [len(payload) for _, payload in kept(history)] == [4, 6]


def test_one_that_is_too_large_alone_is_not_kept_but_counted() -> None:
    history = BatchHistory(10, 10)
    history.append(b"a")
    assert history.append(bytes(11)) == 1
    assert kept(history) == []
    assert history.append(b"b") == 2
    assert kept(history) == [(2, b"b")]
