"""What does a draft cost? The time it adds to a step, in steps without drafts, as measured on this machine.

A step of a large model reads its weights for one token as for five; one of a small model takes little
more time than it takes to lay it out. So the price is learnt from the steps themselves: what steps without
drafts take, by their number of rows, and how much longer steps take, by their number of drafts. Times of
steps that were interrupted count at most as twice what was known.

Who drafts takes time, too. That is no part of a step's time here, but is told in tokens, of which a step
without drafts has one of each row. Where nothing is found, a small model is not held up by looking for it in
every step.
"""

from __future__ import annotations

from splitserve.engine_core.config import MAX_CHEAP_ROWS

# Until any step has had drafts: a quarter of a token each. Of another number they cost what they did last.
FIRST_PRICE = 0.25
_MEMORY = 0.8
# How often nothing is looked for where nothing was found, so that it takes this share of the time at most.
_MAX_LOOK_SHARE, _MAX_IDLE_STEPS = 0.005, 8
# What reading ahead may cost a row in one pause, in steps.
_MAX_READ_STEPS = 0.5
# By which share of a step it is taken to cost less with each step, so that it is tried again.
_READ_FADES = 0.999


class DraftPrices:
    """Learns from every step that only decodes; used by the worker's thread."""

    def __init__(self) -> None:
        self._plain_s = [0.0] * (MAX_CHEAP_ROWS + 1)
        # Time of a step of so many drafts beyond that of one without, as a share of the latter.
        self._extra: dict[int, float] = {}
        # Of one draft, in the last steps with any.
        self._extra_of_one: float | None = None
        # What it takes to look for drafts where there are none.
        self._look_s = 0.0
        # What reading ahead takes per step, as a share of the latter.
        self._read_share = 0.0

    def took(self, num_rows: int, num_drafts: int, seconds: float) -> None:
        """Take note of a step that computed the last token of each row, and drafts."""
        if not 0 < num_rows <= MAX_CHEAP_ROWS:
            return
        known_s = self._plain_s[num_rows]
        if num_drafts == 0:
            self._plain_s[num_rows] = _moved(known_s, seconds) if known_s else seconds
            self._read_share *= _READ_FADES
        elif known_s:
            share = max(0.0, seconds / known_s - 1)
            known = self._extra.get(num_drafts)
            self._extra[num_drafts] = share if known is None else _moved(known, share)
            self._extra_of_one = self._extra[num_drafts] / num_drafts

    def looked(self, seconds: float) -> None:
        """Take note of how long a step was looked for drafts in which there were none."""
        self._look_s = _moved(self._look_s, seconds) if self._look_s else seconds

    def num_idle_steps(self, num_rows: int) -> int:
        """Return in how many steps nobody need look for drafts, after one of so many rows without any.

        The engine has about as much to do for a step that may draft as the worker.
        """
        known_s = self._plain_s[num_rows] if num_rows <= MAX_CHEAP_ROWS else 0.0
        return min(_MAX_IDLE_STEPS, int(2 * self._look_s / known_s / _MAX_LOOK_SHARE)) if known_s else 0

    def of_a_draft(self, num_rows: int, num_drafts: int) -> float:
        """Return what each of a step's drafts costs, in tokens: a step without drafts has one of each row."""
        extra = self._extra.get(num_drafts)
        of_one = self._extra_of_one if extra is None or not num_drafts else extra / num_drafts
        return FIRST_PRICE if of_one is None else of_one * num_rows

    def in_tokens(self, num_rows: int, seconds: float) -> float:
        """Return how many tokens a step of so many rows would have made in the time; 0 if nobody knows."""
        known_s = self._plain_s[num_rows] if num_rows <= MAX_CHEAP_ROWS else 0.0
        return seconds / known_s * num_rows if known_s else 0.0

    def read_ahead(self, num_rows: int, seconds: float) -> None:
        """Take note of how long a drafter read for a step that only decoded, before it is asked to draft."""
        known_s = self._plain_s[num_rows] if num_rows <= MAX_CHEAP_ROWS else 0.0
        if known_s:
            share = seconds / known_s
            self._read_share = _moved(self._read_share, share) if self._read_share else share

    def num_affordable_reads(self, most: int) -> int:
        """Return for how many steps a row that pauses may be read, so that it costs half a step at most."""
        # What has faded for hours is so small that no float is as large as its inverse.
        if most * self._read_share <= _MAX_READ_STEPS:
            return most
        return int(_MAX_READ_STEPS / self._read_share)


def _moved(known: float, new: float) -> float:
    return _MEMORY * known + (1 - _MEMORY) * min(new, 2 * known + 0.1)
