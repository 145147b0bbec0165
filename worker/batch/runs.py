"""Which of the tokens sampled behind drafts count? Those up to the first that is not what was drafted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from splitserve.worker.ops.columns import Int32


class Runs(NamedTuple):
    """The tokens that a step draws, S in all: of each of R rows one, and one behind each of its drafts.

    Attributes:
        rows: int32 [S], the row of each token, those of a row side by side.
        lengths: int32 [S], the tokens in front of it, drafts included.
        places: int32 [S], which of the step's tokens it is drawn from.
        first: [R], index of each row's first token.
    """

    rows: Int32
    lengths: Int32
    places: Int32
    first: npt.NDArray[np.intp]

    @classmethod
    def of(cls, rows: Int32, lengths: Int32, num_drafts: Int32, ends: Int32) -> Runs:
        """Lay out the runs of R rows that sample.

        Args:
            rows: int32 [R].
            lengths: int32 [R], known tokens of each.
            num_drafts: int32 [R].
            ends: int32 [R], the place behind the row's last token among those of the step.
        """
        counts = num_drafts + np.int32(1)
        first = counts.cumsum() - counts
        behind = np.arange(int(counts.sum()), dtype=np.int32) - first.repeat(counts).astype(np.int32)
        return cls(
            rows.repeat(counts),
            lengths.repeat(counts) + behind,
            (ends - counts).repeat(counts) + behind,
            first,
        )

    @property
    def num_drafts(self) -> Int32:
        """Drafts of each row, int32 [R]."""
        return np.diff(np.append(self.first, len(self.rows))).astype(np.int32) - np.int32(1)

    def accept(self, token_ids: Int32, drafted: Int32) -> Int32:
        """Return how many tokens of each row's run count, int32 [R].

        A token counts if all drafts in front of it are what was drawn in their places. One that could not be
        drawn, which is negative, ends the run before it; 0 says that this is its first token.

        Args:
            token_ids: int32 [S], drawn.
            drafted: int32 [S], the draft in the place of each; anything behind the last draft.
        """
        places = np.arange(len(token_ids))
        stops = token_ids != drafted
        stops[np.append(self.first[1:], len(token_ids)) - 1] = True
        last = np.minimum.reduceat(np.where(stops, places, len(places)), self.first)
        counted = last - self.first + (token_ids[last] >= 0)
        return counted.astype(np.int32)

    def taken(self, accepted: Int32) -> npt.NDArray[np.bool_]:
        """Return which of the S tokens count, given how many do of each row."""
        counts = self.num_drafts + 1
        behind = np.arange(len(self.rows)) - self.first.repeat(counts)
        taken: npt.NDArray[np.bool_] = behind < accepted.repeat(counts)
        return taken
