"""When is an engine greeted and pinged, and when is its silence too long? Timers without a clock."""

from __future__ import annotations

import math

HELLO_INTERVAL_S = 1.0
REFUSED_INTERVAL_S = 10.0
PING_INTERVAL_S = 0.5
# A lease shorter than two seconds needs more frequent pings.
PINGS_PER_LEASE = 4
# While an engine loads, its loop may be busy for some seconds.
LOADING_SILENCE_S = 10.0
# While it serves, its loop answers between two steps at the latest.
SILENCE_S = 2.0
SILENCE_STEPS = 20


class Liveness:
    """Times of one engine's session, in monotonic seconds; its owner says what is sent and received."""

    def __init__(self) -> None:
        self._last_hello_s = -math.inf
        self._last_ping_s = -math.inf
        self._last_heard_s = 0.0
        self._last_tick_s: float | None = None

    def heard(self, now_s: float) -> None:
        """Note a message of the engine."""
        self._last_heard_s = now_s

    def said_hello(self, now_s: float) -> None:
        """Note a Hello."""
        self._last_hello_s = now_s

    def pinged(self, now_s: float) -> None:
        """Note a Ping."""
        self._last_ping_s = now_s

    def tick(self, now_s: float, *, is_serving: bool) -> None:
        """Note that the timers run, which they do a few times a second."""
        gap_s = 0.0 if self._last_tick_s is None else now_s - self._last_tick_s
        self._last_tick_s = now_s
        if is_serving and gap_s > PING_INTERVAL_S:
            # Our own process was stopped. What the engine sent meanwhile is still unread; only the engine
            # knows whether it has dropped us, and its Pong to the next ping will tell.
            self._last_heard_s += gap_s

    def wants_hello(self, now_s: float, *, was_refused: bool) -> bool:
        """Return whether an engine that does not serve is to be greeted again."""
        return now_s - self._last_hello_s >= (REFUSED_INTERVAL_S if was_refused else HELLO_INTERVAL_S)

    def wants_ping(self, now_s: float, lease_s: float) -> bool:
        """Return whether a serving engine is to be pinged."""
        return now_s - self._last_ping_s >= min(PING_INTERVAL_S, lease_s / PINGS_PER_LEASE)

    def is_silent(self, now_s: float, max_s: float) -> bool:
        """Return whether nothing was heard for longer than this."""
        return now_s - self._last_heard_s > max_s


def max_silence_s(median_step_s: float) -> float:
    """Return the longest silence of a serving engine, in seconds."""
    return max(SILENCE_S, SILENCE_STEPS * median_step_s)
