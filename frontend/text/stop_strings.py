"""Finds stop strings in text that arrives in pieces, and never lets out the beginning of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopResult(NamedTuple):
    """Text that is safe to give out, and the stop string that matched, if one did."""

    text: str
    matched: str | None = None


class StopMatcher:
    """Matches the stop strings of one sequence.

    The stop string that is complete first wins, and of several complete at the same character the longest; so
    the result does not depend on how the text was cut into pieces. At most one character less than the
    longest stop string is held back. What is complete in passed text does not count, but a stop string may
    begin there.
    """

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include_in_output
        self._held = ""

    def push(self, text: str) -> StopResult:
        """Take new text; after a match nothing more may be pushed."""
        if not text:
            return StopResult("")
        buffer = self._held + text
        match = self._first_match(buffer, len(self._held))
        if match is None:
            return StopResult(self._hold_back(buffer))
        start, stop = match
        self._held = ""
        return StopResult(buffer[: start + (len(stop) if self._include else 0)], stop)

    def pass_over(self, text: str) -> str:
        """Take new text that completes no stop string, whatever it says; returns what is safe to give out."""
        return self._hold_back(self._held + text)

    def finish(self) -> str:
        """Return what was held back: no stop string follows any more."""
        held, self._held = self._held, ""
        return held

    def _hold_back(self, buffer: str) -> str:
        num_safe = len(buffer) - max(num_begun(buffer, stop) for stop in self._stops)
        self._held = buffer[num_safe:]
        return buffer[:num_safe]

    def _first_match(self, buffer: str, num_looked_at: int) -> tuple[int, str] | None:
        """Return start and stop string of the first match that ends behind what was looked at before."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = buffer.find(stop, max(0, num_looked_at + 1 - len(stop)))
            if start >= 0:
                found = (start + len(stop), start, stop)
                best = found if best is None else min(best, found)
        return None if best is None else best[1:]


def num_begun(buffer: str, stop: str) -> int:
    """Return the length of the longest proper prefix of stop that buffer ends with."""
    start = buffer.find(stop[0], max(0, len(buffer) - len(stop) + 1))
    while start >= 0:
        if stop.startswith(buffer[start:]):
            return len(buffer) - start
        start = buffer.find(stop[0], start + 1)
    return 0
