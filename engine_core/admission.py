"""How much may wait in the queue, and how long would a newcomer wait there?"""

from __future__ import annotations

import math
from collections import Counter

from engine_core.errors import OverloadedError

# Bounds of what a client is told; without a measurement it is told the least.
MIN_RETRY_S = 1
MAX_RETRY_S = 600
RATE_MEMORY_S = 30.0


class DrainRate:
    """Prompt tokens that leave the queue per second of waiting; the last half minute counts most.

    Time counts while something waits only: an idle engine is not a slow one. Rows that decode for long, full
    pools and prefix hits are all in it, for it is measured at the queue's exit.
    """

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0
        self._last_s = 0.0
        self._was_waiting = False

    def advance(self, now_s: float, is_waiting: bool) -> None:
        """Let time pass; call it before and after every change of the queue.

        Args:
            now_s: monotonic seconds, never less than before.
            is_waiting: whether anything waits from now on.
        """
        if self._was_waiting:
            passed_s = now_s - self._last_s
            fade = math.exp(-passed_s / RATE_MEMORY_S)
            self._tokens *= fade
            self._seconds = self._seconds * fade + passed_s
        self._last_s, self._was_waiting = now_s, is_waiting

    def left(self, num_tokens: int) -> None:
        """Count prompt tokens that were admitted."""
        self._tokens += num_tokens

    def seconds_for(self, num_tokens: int) -> int:
        """Return how long so many tokens take to leave, MIN_RETRY_S to MAX_RETRY_S whole seconds."""
        if num_tokens <= 0 or self._seconds <= 0:
            return MIN_RETRY_S
        # Multiplied out: nothing may have left at all.
        if num_tokens * self._seconds >= MAX_RETRY_S * self._tokens:
            return MAX_RETRY_S
        return max(MIN_RETRY_S, math.ceil(num_tokens * self._seconds / self._tokens))


class Admission:
    """Bounds what waits and has not run yet; preempted requests come on top. Owned by the engine.

    Args:
        max_num_waiting: requests.
        max_waiting_tokens: their known tokens.

    Attributes:
        num_waiting_tokens: tokens of the requests that wait for their first row.
        rejected: requests turned away, by bound.
    """

    def __init__(self, max_num_waiting: int, max_waiting_tokens: int) -> None:
        self._max_num_waiting = max_num_waiting
        self._max_waiting_tokens = max_waiting_tokens
        self._rate = DrainRate()
        self.num_waiting_tokens = 0
        self.rejected: Counter[str] = Counter()

    def check(self, num_waiting: int, num_tokens: int, now_s: float) -> None:
        """Refuse a request for which the queue has no room; one alone may exceed the bound of tokens.

        Args:
            num_waiting: requests that wait, preempted ones included, less those that free rows are there for.
            num_tokens: of the new request.
            now_s: monotonic seconds.

        Raises:
            OverloadedError: names the bound and how long the queue will take; has retry_after_s.
        """
        if num_waiting >= self._max_num_waiting:
            raise self._overloaded("max_num_waiting", f"{num_waiting} requests wait already", now_s)
        if (
            self.num_waiting_tokens
            and self.num_waiting_tokens + max(0, num_tokens) > self._max_waiting_tokens
        ):
            what = f"{self.num_waiting_tokens} prompt tokens wait already and this request has {num_tokens}"
            raise self._overloaded("max_waiting_tokens", what, now_s)

    def added(self, num_tokens: int, now_s: float) -> None:
        """Count a request that waits from now on."""
        self.num_waiting_tokens += num_tokens
        self._rate.advance(now_s, True)

    def started(self, num_tokens: int, now_s: float) -> None:
        """Count a request that got its first row."""
        self._leave(num_tokens, now_s)
        self._rate.left(num_tokens)

    def given_up(self, num_tokens: int, now_s: float) -> None:
        """Count a request that ended before it ever ran."""
        self._leave(num_tokens, now_s)

    def queue_time_s(self, now_s: float) -> int:
        """Estimate how long a newcomer would wait, 1 to 600 whole seconds."""
        self._rate.advance(now_s, self.num_waiting_tokens > 0)
        return self._rate.seconds_for(self.num_waiting_tokens)

    def _leave(self, num_tokens: int, now_s: float) -> None:
        self.num_waiting_tokens -= num_tokens
        self._rate.advance(now_s, self.num_waiting_tokens > 0)

    def _overloaded(self, bound: str, what: str, now_s: float) -> OverloadedError:
        self.rejected[bound] += 1
        estimate_s = self.queue_time_s(now_s)
        flag = f"--{bound.replace('_', '-')}"
        error = OverloadedError(f"{what} ({flag}); the queue takes about {estimate_s} s, retry after that")
        error.retry_after_s = float(estimate_s)
        return error
