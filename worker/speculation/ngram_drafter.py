"""Prompt lookup: what followed when a row's last tokens occurred before?"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from splitserve.engine_core.ipc.worker_messages import NewRow
from splitserve.worker.batch.input_batch import BatchLimits
from splitserve.worker.ops.columns import Array, NgramColumns, Width, allocate
from splitserve.worker.ops.decode import Recording
from splitserve.worker.ops.drafts.ngrams import NgramLengths, draft_ngrams
from splitserve.worker.speculation.draft_sheet import DraftSheet

MIN_HEADS, MAX_HEADS = 2**10, 2**16


class NgramDrafter:
    """A Drafter that knows the rows' own prompts and outputs."""

    method = "ngram"
    is_at_speed = True

    def __init__(self, sheet: DraftSheet, lengths: NgramLengths) -> None:
        """Args: sheet is the one that will be drafted to; lengths are those that are looked up."""
        limits = sheet.batch.limits
        self._columns = columns = allocate(NgramColumns[Array], limits.max_num_seqs, index_sizes(limits))
        with Recording() as recording:
            draft_ngrams(sheet.tensors, NgramColumns[torch.Tensor](*map(torch.from_numpy, columns)), lengths)
        self._draft = recording.replay

    def enter(self, new: NewRow) -> bool:
        """See Drafter."""
        self._columns.num_indexed[new.row] = 0
        return True

    def leave(self, rows: Iterable[int]) -> None:
        """See Drafter."""

    def draft(self, sheet: DraftSheet) -> None:
        """See Drafter."""
        self._draft()


def index_sizes(limits: BatchLimits) -> dict[Width, int]:
    """Return how many elements columns of an index of n-grams have per row; a row's fill as it grows."""
    num_heads = min(max(MIN_HEADS, 1 << (limits.max_model_len - 1).bit_length()), MAX_HEADS)
    return {Width.HEADS: num_heads, Width.TOKENS: limits.max_model_len + 1}
