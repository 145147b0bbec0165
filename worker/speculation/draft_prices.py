"""What does a draft cost? The time it adds to a step, in steps without drafts, as measured on this machine.

A step of a large model reads its weights for one token as for five; one of a small model takes little
more time than it takes to lay it out. So the price is learnt from the steps themselves: what steps without
drafts take, by their number of rows, and how much longer steps take, by their number of drafts. Times of
steps that were interrupted count at most as twice what was known.
"""

from __future__ import annotations

# Steps of more rows do not draft, see engine_core.scheduler.pacing.drafts.
MAX_ROWS = 64
# Until a step has had so many drafts: a quarter of a token each.
FIRST_PRICE = 0.25
_MEMORY = 0.8


class DraftPrices:
    """Learns from every step that only decodes; used by the worker's thread."""

    def __init__(self) -> None:
        self._plain_s = [0.0] * (MAX_ROWS + 1)
        # Time of a step of so many drafts beyond that of one without, as a share of the latter.
        self._extra: dict[int, float] = {}

    def took(self, num_rows: int, num_drafts: int, seconds: float) -> None:
        """Take note of a step that computed the last token of each row, and drafts."""
        if not 0 < num_rows <= MAX_ROWS:
            return
        known_s = self._plain_s[num_rows]
        if num_drafts == 0:
            self._plain_s[num_rows] = _moved(known_s, seconds) if known_s else seconds
        elif known_s:
            share = max(0.0, seconds / known_s - 1)
            known = self._extra.get(num_drafts)
            self._extra[num_drafts] = share if known is None else _moved(known, share)

    def of_a_draft(self, num_rows: int, num_drafts: int) -> float:
        """Return what each of a step's drafts costs, in tokens: a step without drafts has one of each row."""
        extra = self._extra.get(num_drafts)
        return FIRST_PRICE if extra is None else extra * num_rows / num_drafts


def _moved(known: float, new: float) -> float:
    return _MEMORY * known + (1 - _MEMORY) * min(new, 2 * known + 0.1)
