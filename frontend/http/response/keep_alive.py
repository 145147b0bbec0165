"""Which streams have been silent for so long that a comment is due? One timer for all of them.

A timer of its own per stream wakes the process for each: 670 times a second with 10,000 streams that are
never silent. Streams are looked at together instead, up to a sixteenth of the interval late.

    event             effect
    add               the stream is looked at when the interval is over
    looked at         silent for the interval: a comment; either way it is looked at again
    discard           forgotten
    nothing is added  no timer runs
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil, floor
from typing import Protocol

TICKS_PER_INTERVAL = 16
# Streams looked at before the event loop gets its turn; a comment takes some 30 us.
MAX_PER_TURN = 64


class SilentStream(Protocol):
    """A stream that may be silent; told apart by identity."""

    def silent_since(self) -> float:
        """Return the monotonic time of the last write, or of the beginning."""

    def break_silence(self) -> None:
        """Write a comment; what goes wrong is not raised."""


class Timer(Protocol):
    """What call_later() returns."""

    def cancel(self) -> None:
        """Call it no more."""


class TimerLoop(Protocol):
    """The part of an event loop that is used."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer:
        """Call it once, `delay` seconds from now."""


class KeepAlive:
    """The open streams of one event loop, by the tick in which they are looked at next."""

    def __init__(self, interval_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        """Prepare.

        Args:
            interval_s: silence after which a comment is due; 0 never.
            now_s: monotonic clock.
        """
        self._interval_s = interval_s
        self._tick_s = interval_s / TICKS_PER_INTERVAL
        self._now_s = now_s
        # As many ticks as an interval has, and two; each with as many streams as are open.
        self._by_tick: dict[int, dict[SilentStream, None]] = {}
        self._tick_of: dict[SilentStream, int] = {}
        self._timer: Timer | None = None

    def add(self, stream: SilentStream, loop: TimerLoop) -> None:
        """Begin to look at a stream."""
        if self._interval_s:
            self._place(stream, self._now_s() + self._interval_s)
            self._arm(loop)

    def discard(self, stream: SilentStream) -> None:
        """Forget a stream, if it is known."""
        tick = self._tick_of.pop(stream, None)
        if tick is not None:
            del self._by_tick[tick][stream]
            self._drop_if_empty(tick)
        if not self._tick_of and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _place(self, stream: SilentStream, due_s: float) -> None:
        tick = ceil(due_s / self._tick_s)
        self._tick_of[stream] = tick
        self._by_tick.setdefault(tick, {})[stream] = None

    def _drop_if_empty(self, tick: int) -> None:
        if not self._by_tick[tick]:
            del self._by_tick[tick]

    def _arm(self, loop: TimerLoop) -> None:
        if self._timer is None and self._by_tick:
            delay_s = min(self._by_tick) * self._tick_s - self._now_s()
            # An event loop that rounds down must not find nothing to do again and again.
            self._timer = loop.call_later(max(0.001, delay_s), lambda: self._on_timer(loop))

    def _on_timer(self, loop: TimerLoop) -> None:
        self._timer = None
        try:
            self._look(self._now_s())
        finally:
            self._arm(loop)

    def _look(self, now_s: float) -> None:
        tick = floor(now_s / self._tick_s)
        for _ in range(MAX_PER_TURN):
            first = min(self._by_tick, default=tick + 1)
            if first > tick:
                return
            stream, _ = self._by_tick[first].popitem()
            self._drop_if_empty(first)
            since_s = stream.silent_since()
            is_silent = now_s - since_s >= self._interval_s
            self._place(stream, (now_s if is_silent else since_s) + self._interval_s)
            if is_silent:
                stream.break_silence()
