"""Where do masks behind drafts stand? Each place that a row samples has its own: one behind each draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.sampling_state import Feature
from splitserve.worker.ops.columns import Index, Int32

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

# Of the drafts of all rows of a step: one for each draft and for each row. Drafts beyond are dropped.
MAX_DRAFT_MASKS = 128


class Drafts(NamedTuple):
    """Drafts of a row, and where its masks of a step begin: one for each, and one behind the last."""

    token_ids: list[int]
    place: int


class DraftMasks:
    """The masks of rows with drafts, behind those of all rows; fill() is called by another thread.

    Attributes:
        next: drafts of the next step by row, whose masks are not there yet.
    """

    def __init__(self, batch: InputBatch, masks: Int32) -> None:
        """Args: batch owns the rows; masks int32 [max_num_seqs + MAX_DRAFT_MASKS, ceil(V / 32)]."""
        self._batch = batch
        self._state = batch.sampling
        self._masks = masks
        self.next: dict[int, Drafts] = {}
        self._step: dict[int, Drafts] = {}
        self._first_places = np.zeros(batch.limits.max_num_seqs, np.intp)
        self._end = batch.limits.max_num_seqs

    def clear(self) -> None:
        """Forget the drafts of the next step."""
        self.next = {}
        self._end = self._batch.limits.max_num_seqs

    def add(self, row: int, token_ids: list[int]) -> int:
        """Give a row's drafts places for their masks; returns for how many there are any."""
        count = max(0, min(len(token_ids), len(self._masks) - 1 - self._end))
        if count:
            self.next[row] = Drafts(token_ids[:count], self._end)
            self._end += count + 1
        return count

    def add_all(self, row: int, token_ids: list[int], count: int) -> None:
        """Give a row with `count` drafts places for all masks; nothing can be drawn behind the token_ids.

        No other thread writes masks meanwhile.
        """
        assert self._end + count < len(self._masks), "a step has fewer positions"
        self._masks[self._end : self._end + count + 1] = 0
        self.next[row] = Drafts(token_ids, self._end)
        self._end += count + 1

    def begin_step(self) -> dict[int, Drafts]:
        """Let the next step be this one; returns its drafts by row."""
        self._step = self.next
        self.clear()
        for row, drafts in self._step.items():
            self._first_places[row] = drafts.place
        return self._step

    def fill(self, executor: LLExecutor, drafted: Sequence[tuple[LLMatcher, int, Drafts]]) -> None:
        """Work out the masks of rows, in front of their drafts, where plain rows have theirs, too."""
        masks = self._masks
        for _, _, drafts in drafted:
            # What a matcher that has stopped leaves out: nothing can be drawn there.
            masks[drafts.place : drafts.place + len(drafts.token_ids) + 1] = 0
        works = [(matcher, drafts.place, drafts.token_ids) for matcher, _, drafts in drafted]
        executor.unsafe_compute_mask_ptr_with_draft_token(works, *table_of(masks))
        for _, row, drafts in drafted:
            masks[row] = masks[drafts.place]

    def forbid(self, row: int) -> None:
        """Let nothing be drawn behind the drafts of a row in this step."""
        drafts = self._step.get(row)
        if drafts is not None:
            self._masks[drafts.place : drafts.place + len(drafts.token_ids) + 1] = 0

    def places(self, index: Index, lengths: Int32) -> Index:
        """Return where the masks of rows of this step stand.

        Args:
            index: [S], rows of the batch.
            lengths: int32 [S], tokens in front of what is sampled.
        """
        behind = lengths - self._batch.num_tokens[index]
        if not self._step or not behind.any():
            return index
        has_grammar = self._state.features[index] & np.uint16(Feature.GRAMMAR) != 0
        return np.where(has_grammar & (behind > 0), self._first_places[index] + behind, index)


def table_of(masks: Int32) -> tuple[int, int, int]:
    """Return the address of masks, the bytes of each, and how many there are."""
    return masks.ctypes.data, masks.shape[1] * masks.itemsize, len(masks)
