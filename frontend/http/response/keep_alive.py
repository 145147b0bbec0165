"""Which streams have been silent for the keep-alive interval and need a comment? One timer serves them all.

A timer per stream would wake the process for each: 670 times a second with 10,000 streams that are never
silent. Instead, streams are checked in groups, up to a sixteenth of the interval late.

    event             effect
    add               the stream is checked after the interval
    checked           silent for the interval: a comment; either way it will be checked again
    discard           removed
    no streams        no timer runs
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil, floor
from typing import Protocol

TICKS_PER_INTERVAL = 16
# Streams checked before the event loop gets to run; a comment takes some 30 us.
MAX_PER_TURN = 64


class SilentStream(Protocol):
    """A stream that may be silent; compared by identity."""

    def silent_since(self) -> float:
        """Return the monotonic time of the last write, or of the stream's start."""

    def break_silence(self) -> None:
        """Write a comment; must not raise."""


class Timer(Protocol):
    """What call_later() returns."""

    def cancel(self) -> None:
        """Cancel the call."""


class TimerLoop(Protocol):
    """The part of an event loop that is used here."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer:
        """Call the callback once, `delay` seconds from now."""


class KeepAlive:
    """The open streams of one event loop, by the tick of their next check."""

    def __init__(self, interval_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        """Create an empty set of streams.

        Args:
            interval_s: silence in seconds after which a comment is due; 0 = never.
            now_s: monotonic clock.
        """
        self._interval_s = interval_s
        self._tick_s = interval_s / TICKS_PER_INTERVAL
        self._now_s = now_s
        # At most two ticks more than an interval has, with all open streams among them.
        self._by_tick: dict[int, dict[SilentStream, None]] = {}
        self._tick_of: dict[SilentStream, int] = {}
        self._timer: Timer | None = None

    def add(self, stream: SilentStream, loop: TimerLoop) -> None:
        """Start checking a stream."""
        if self._interval_s:
            self._place(stream, self._now_s() + self._interval_s)
            self._arm(loop)

    def discard(self, stream: SilentStream) -> None:
        """Remove a stream, if present."""
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
            # An event loop that rounds down must not wake repeatedly with nothing to do.
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
