"""What does the client expect? The `prediction` of a request, such as a file before it is edited."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow
from splitserve.worker.ops.columns import Array, PredictionColumns, allocate
from splitserve.worker.ops.decode import Recording
from splitserve.worker.ops.drafts.ngrams import NgramLengths
from splitserve.worker.ops.drafts.predictions import draft_predictions
from splitserve.worker.speculation.draft_sheet import DraftSheet
from splitserve.worker.speculation.ngram_drafter import index_sizes

# Two tokens say where an output is again after it has left its text.
_LENGTHS = NgramLengths(2, 16)


class PredictionDrafter:
    """A Drafter that knows the predictions of rows; does nothing where there are none."""

    method = "prediction"
    is_at_speed = True

    def __init__(self, sheet: DraftSheet) -> None:
        """Args: sheet is the one that will be drafted to."""
        limits = sheet.batch.limits
        self._vocab_size = limits.vocab_size
        self._columns = columns = allocate(PredictionColumns[Array], limits.max_num_seqs, index_sizes(limits))
        tensors = PredictionColumns[torch.Tensor](*map(torch.from_numpy, columns))
        with Recording() as recording:
            draft_predictions(sheet.tensors, tensors, _LENGTHS)
        self._draft = recording.replay

    def enter(self, new: NewRow) -> bool:
        """See Drafter."""
        row, columns = new.row, self._columns
        columns.num_text[row] = 0
        if not new.predicted_token_ids:
            return False
        text = unpack_int32(new.predicted_token_ids)[: columns.text.shape[1]]
        # Drafts are looked up in the embedding.
        if text.min() < 0 or text.max() >= self._vocab_size:
            return False
        columns.text[row, : len(text)] = text
        columns.num_text[row] = len(text)
        columns.num_prompt[row] = columns.place_end[row] = new.num_prompt_tokens
        columns.place[row] = columns.num_indexed[row] = 0
        return True

    def leave(self, rows: Iterable[int]) -> None:
        """See Drafter."""

    def draft(self, sheet: DraftSheet) -> None:
        """See Drafter."""
        self._draft()
