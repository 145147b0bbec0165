"""How long did a step take, if what others do between two steps counts?

A step with drafts takes its engine longer, too: it has to find out which of them count. Where steps are
short, the worker waits for it. So of two decode steps in a row, the time between them counts for the second
one, up to as much as it takes itself: a longer wait has other reasons.
"""

from __future__ import annotations

from typing import NamedTuple


class StepTimes(NamedTuple):
    """When something happened, in seconds of one clock.

    Attributes:
        begun: the worker took the step.
        started: all had drafted, and the step was run.
        ended: its tokens were known.
    """

    begun: float
    started: float
    ended: float


class StepPeriods:
    """Knows when the last step ended; used by the worker's thread."""

    def __init__(self) -> None:
        self._last_end = 0.0

    def of(self, times: StepTimes, *, only_decodes: bool) -> float | None:
        """Return how long a step took but for the drafting, with the time before it.

        None if it is not known when the step before ended, or that did not only decode.
        """
        last_end, self._last_end = self._last_end, times.ended if only_decodes else 0.0
        if not last_end or not only_decodes:
            return None
        own_s = times.ended - times.started
        return own_s + min(max(0.0, times.begun - last_end), own_s)

    def skip(self) -> None:
        """Take note of a step of which it is not known when it ended."""
        self._last_end = 0.0
