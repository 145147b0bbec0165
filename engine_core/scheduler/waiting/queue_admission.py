"""How much may wait, who makes room in a full queue, and how long would a new request wait?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from splitserve.engine_core.errors import OverloadedError
from splitserve.engine_core.ipc.messages import FinishReason
from splitserve.engine_core.request import EndedRequest, Request, Siblings
from splitserve.engine_core.scheduler.waiting.places import Places, QueueBound

# Limits of the wait a client is told; without a measurement it is told the minimum.
MIN_RETRY_S = 1
MAX_RETRY_S = 600
RATE_MEMORY_S = 30.0
# Most requests that leave for one that exceeds its tenant's share, so that a search in vain costs little.
# For a request within its share as many leave as it takes.
MAX_DISPLACED = 16
# A request that has begun elsewhere has cost work already: it may wait where a new one would be rejected.
BEGUN_FACTOR = 2


class DrainRate:
    """Prompt tokens that leave the queue per second of waiting; the last half minute counts most.

    Time counts only while something waits: an idle engine is not a slow one. Long decodes, full pools and
    prefix hits are all accounted for, as the rate is measured where requests leave the queue.
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
            is_waiting: whether anything waits after the change.
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
        """Return how long `num_tokens` take to leave, MIN_RETRY_S to MAX_RETRY_S whole seconds."""
        if num_tokens <= 0 or self._seconds <= 0:
            return MIN_RETRY_S
        # Multiplied instead of divided: nothing may have left at all.
        if num_tokens * self._seconds >= MAX_RETRY_S * self._tokens:
            return MAX_RETRY_S
        return max(MIN_RETRY_S, math.ceil(num_tokens * self._seconds / self._tokens))


class Displaced(NamedTuple):
    """A waiting request that makes room, and its error: the same as if it had been rejected on arrival."""

    siblings: Siblings
    error: OverloadedError

    def ends(self) -> list[EndedRequest]:
        """Return the end of each of its sequences."""
        error = self.error
        return [
            EndedRequest(
                request,
                FinishReason.ERROR,
                error_code=error.code,
                error_message=str(error),
                error_status=error.status,
                retry_after_s=error.retry_after_s,
            )
            for request in self.siblings.waiting.values()
        ]


class QueueAdmission:
    """Limits what waits and has not run yet; preempted requests do not count. Owned by the engine.

    Args:
        max_num_waiting: requests.
        max_waiting_tokens: their known tokens.
        weights: by tenant; others have 1.

    Attributes:
        rejected: requests turned away, by bound.
    """

    def __init__(self, max_num_waiting: int, max_waiting_tokens: int, weights: Mapping[str, int]) -> None:
        self._max_num_waiting = max_num_waiting
        self._max_waiting_tokens = max_waiting_tokens
        self._rate = DrainRate()
        self._places = Places(weights)
        self.rejected: Counter[str] = Counter()

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their first row."""
        return self._places.sizes[0]

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens of the requests that wait for their first row."""
        return self._places.sizes[1]

    def make_room(self, incoming: Siblings, num_free_rows: int, now_s: float) -> list[Displaced]:
        """Find room for all sequences of a request; one request alone may exceed both bounds.

        Args:
            incoming: not added yet. If it has begun elsewhere, twice the limits apply to it.
            num_free_rows: as many waiting requests do not count, as they get these rows in the next step;
                less the rows that requests which have run before will take.
            now_s: monotonic seconds.

        Returns:
            Who has to end before it is added, and how; nothing has changed yet.

        Raises:
            OverloadedError: names the bound and how long the queue will take; has retry_after_s.
        """
        (held, held_tokens), (size, num_tokens) = self._places.sizes, incoming.sizes
        if (
            held + size <= self._max_num_waiting + num_free_rows
            and held_tokens + num_tokens <= self._max_waiting_tokens
        ):
            return []
        factor = BEGUN_FACTOR if incoming.has_begun else 1
        room = (self._max_num_waiting * factor + num_free_rows, self._max_waiting_tokens * factor)
        chosen: list[tuple[Siblings, QueueBound]] = []
        full_of = self._choose(incoming, room, chosen)
        for siblings, _ in chosen:
            self._places.add(siblings)
        if full_of is not None:
            raise self._refused(incoming, full_of, num_free_rows, now_s)
        why = "displaced by a tenant or frontend that holds fewer places in the queue"
        return [Displaced(siblings, self._overloaded(bound, why, now_s)) for siblings, bound in chosen]

    def added(self, siblings: Siblings, now_s: float) -> None:
        """Count a request whose sequences wait from now on."""
        self._places.add(siblings)
        self._rate.advance(now_s, True)

    def started(self, request: Request, now_s: float) -> None:
        """Count a sequence that got its first row; from now on its request cannot be displaced."""
        request.siblings.has_begun = True
        self._leave(request, now_s)
        self._rate.left(request.num_stored_tokens)

    def given_up(self, request: Request, now_s: float) -> None:
        """Count a sequence that ended before it ever ran."""
        self._leave(request, now_s)

    def queue_time_s(self, now_s: float) -> int:
        """Estimate how long a new request would wait, 1 to 600 whole seconds."""
        self._rate.advance(now_s, self.num_waiting > 0)
        return self._rate.seconds_for(self.num_waiting_tokens)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless the places are consistent."""
        self._places.check_integrity()

    def _choose(
        self, incoming: Siblings, room: tuple[int, int], chosen: list[tuple[Siblings, QueueBound]]
    ) -> QueueBound | None:
        """Remove the requests that have to leave; returns the limit for which that is not enough."""
        places = self._places
        for bound in QueueBound:
            while self.num_waiting and places.sizes[bound] + incoming.sizes[bound] > room[bound]:
                siblings = places.choose(incoming, bound)
                if siblings is None or (
                    len(chosen) >= MAX_DISPLACED and not places.is_within_share(incoming, bound, room[bound])
                ):
                    return bound
                places.remove(siblings)
                chosen.append((siblings, bound))
        return None

    def _leave(self, request: Request, now_s: float) -> None:
        self._places.left(request)
        self._rate.advance(now_s, self.num_waiting > 0)

    def _refused(
        self, incoming: Siblings, bound: QueueBound, num_free_rows: int, now_s: float
    ) -> OverloadedError:
        size = incoming.sizes[bound]
        if bound is QueueBound.REQUESTS:
            what = f"queue full: {_counted(self.num_waiting - num_free_rows, 'request')} waiting"
            what += f", and this one has {size} sequences" if size > 1 else ""
        else:
            waiting = _counted(self.num_waiting_tokens, "prompt token")
            what = f"queue full: {waiting} waiting, and this request has {size}"
        return self._overloaded(bound, what, now_s)

    def _overloaded(self, bound: QueueBound, what: str, now_s: float) -> OverloadedError:
        self.rejected[bound.flag] += 1
        estimate_s = self.queue_time_s(now_s)
        flag = f"--{bound.flag.replace('_', '-')}"
        error = OverloadedError(f"{what} ({flag}); the estimated wait is {estimate_s} s, retry after that")
        error.retry_after_s = float(estimate_s)
        return error


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
