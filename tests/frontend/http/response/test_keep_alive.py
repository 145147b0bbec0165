"""When open streams are looked at for silence, on a clock and a loop that the test plays itself."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from splitserve.frontend.http.response.keep_alive import MAX_PER_TURN, TICKS_PER_INTERVAL, KeepAlive

INTERVAL_S = 16.0
TICK_S = INTERVAL_S / TICKS_PER_INTERVAL


class FakeTimer:
    def __init__(self, at_s: float, callback: Callable[[], None]) -> None:
        self.at_s, self.callback, self.cancelled = at_s, callback, False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLoop:
    """A clock that runs its timers, and counts them."""

    def __init__(self) -> None:
        self.at_s = 1000.25
        self.timers: list[FakeTimer] = []
        self.num_runs = 0

    def now_s(self) -> float:
        return self.at_s

    def call_later(self, delay: float, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(self.at_s + delay, callback)
        self.timers.append(timer)
        return timer

    def pending(self) -> list[FakeTimer]:
        self.timers = [timer for timer in self.timers if not timer.cancelled]
        return self.timers

    def run_one(self) -> None:
        timer = min(self.pending(), key=lambda timer: timer.at_s)
        self.timers.remove(timer)
        self.at_s = max(self.at_s, timer.at_s)
        self.num_runs += 1
        timer.callback()

    def run_until(self, until_s: float) -> None:
        while any(timer.at_s <= until_s for timer in self.pending()):
            self.run_one()
        self.at_s = until_s


class FakeStream:
    def __init__(self, loop: FakeLoop) -> None:
        self._loop = loop
        self.written_s = loop.at_s
        self.comments: list[float] = []
        self.num_looks = 0

    def silent_since(self) -> float:
        self.num_looks += 1
        return self.written_s

    def break_silence(self) -> None:
        self.written_s = self._loop.at_s
        self.comments.append(self._loop.at_s)


@pytest.fixture
def loop() -> FakeLoop:
    return FakeLoop()


@pytest.fixture
def keep_alive(loop: FakeLoop) -> KeepAlive:
    return KeepAlive(INTERVAL_S, loop.now_s)


def test_a_silent_stream_gets_a_comment_per_interval_and_at_most_a_tick_late(
    loop: FakeLoop, keep_alive: KeepAlive
) -> None:
    stream = FakeStream(loop)
    begin_s = loop.at_s
    keep_alive.add(stream, loop)
    loop.run_until(begin_s + 4 * (INTERVAL_S + TICK_S))
    waits = [later - earlier for earlier, later in pairwise([begin_s, *stream.comments])]
    assert len(waits) == 4
    assert all(INTERVAL_S <= wait <= INTERVAL_S + TICK_S for wait in waits)


def test_a_write_puts_the_comment_off_until_the_interval_after_it(
    loop: FakeLoop, keep_alive: KeepAlive
) -> None:
    stream = FakeStream(loop)
    keep_alive.add(stream, loop)
    written_s = loop.at_s + INTERVAL_S - 1
    loop.run_until(written_s)
    stream.written_s = written_s
    loop.run_until(written_s + INTERVAL_S - 0.01)
    assert stream.comments == []
    loop.run_until(written_s + INTERVAL_S + TICK_S)
    assert len(stream.comments) == 1


def test_one_timer_serves_many_streams_and_looks_once_per_interval(
    loop: FakeLoop, keep_alive: KeepAlive
) -> None:
    streams = []
    for _ in range(MAX_PER_TURN // 2):
        streams.append(FakeStream(loop))
        keep_alive.add(streams[-1], loop)
        assert len(loop.pending()) == 1
        loop.at_s += 0.01
    loop.run_until(loop.at_s + INTERVAL_S + TICK_S)
    assert loop.num_runs <= 2
    assert {stream.num_looks for stream in streams} == {1}


def test_a_turn_looks_at_a_bounded_number_and_the_rest_has_the_next(
    loop: FakeLoop, keep_alive: KeepAlive
) -> None:
    streams = [FakeStream(loop) for _ in range(2 * MAX_PER_TURN + 1)]
    for stream in streams:
        keep_alive.add(stream, loop)
    done = []
    for _ in range(3):
        loop.run_one()
        done.append(sum(len(stream.comments) for stream in streams))
    assert done == [MAX_PER_TURN, 2 * MAX_PER_TURN, 2 * MAX_PER_TURN + 1]


def test_a_stream_that_ended_is_forgotten_and_the_last_one_stops_the_timer(
    loop: FakeLoop, keep_alive: KeepAlive
) -> None:
    one, other = FakeStream(loop), FakeStream(loop)
    keep_alive.add(one, loop)
    keep_alive.add(other, loop)
    keep_alive.discard(one)
    loop.run_until(loop.at_s + INTERVAL_S + TICK_S)
    assert (one.num_looks, len(other.comments)) == (0, 1)
    keep_alive.discard(other)
    keep_alive.discard(other)
    assert loop.pending() == []


def test_a_stream_that_ends_when_it_gets_its_comment_is_forgotten(
    loop: FakeLoop, keep_alive: KeepAlive
) -> None:
    class Ending(FakeStream):
        def break_silence(self) -> None:
            super().break_silence()
            keep_alive.discard(self)

    stream = Ending(loop)
    keep_alive.add(stream, loop)
    loop.run_one()
    assert len(stream.comments) == 1
    assert loop.pending() == []


def test_without_an_interval_nothing_is_looked_at(loop: FakeLoop) -> None:
    keep_alive = KeepAlive(0.0, loop.now_s)
    stream = FakeStream(loop)
    keep_alive.add(stream, loop)
    keep_alive.discard(stream)
    assert loop.pending() == []
