"""What rows add to single logits now: biases, and -inf for ends of bad words and ends that come too early."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from splitserve.engine_core.ipc.worker_messages import RowError
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.row_faults import row_fault
from splitserve.worker.batch.sampling_state import Feature
from splitserve.worker.device.base import Device
from splitserve.worker.ops.columns import Int32

_EDITING = Feature.LOGIT_BIAS | Feature.BAD_WORDS | Feature.MIN_TOKENS


class _Edits(NamedTuple):
    """Token ids int32 [n] and what is added to their logits, float32 [n]; -inf forbids a token."""

    token_ids: Int32
    values: npt.NDArray[np.float32]

    @classmethod
    def forbidding(cls, token_ids: Int32) -> _Edits:
        return cls(token_ids, np.full(len(token_ids), -np.inf, np.float32))


class LogitEditor:
    """Edits the logits of rows that ask for it, in one call of the device; other rows cost nothing."""

    def __init__(self, device: Device, batch: InputBatch) -> None:
        """Args: device of the logits; batch owns the rows, of which only outlived features are changed."""
        self._device = device
        self._batch = batch
        self._state = batch.sampling

    def apply(self, logits: torch.Tensor, rows: Int32, lengths: Int32, faults: dict[int, RowError]) -> None:
        """Edit in place; nothing is waited for.

        Args:
            logits: float32 [S, V].
            rows: int32 [S], rows of the batch; logits[i] belongs to rows[i].
            lengths: int32 [S], tokens in front of the one to be drawn, which stand in the batch.
            faults: gets the errors of rows whose edits raised an exception; their logits stay as they are.
        """
        indices = self._state.rows_with(_EDITING, rows)
        edits: list[_Edits] = []
        ends = [0]
        for row, length in zip(rows[indices].tolist(), lengths[indices].tolist(), strict=True):
            own: list[_Edits] = []
            try:
                own = self._of_row(row, length)
            except Exception as error:
                faults[row] = row_fault(row, error)
            edits += own
            ends.append(ends[-1] + sum(len(some.token_ids) for some in own))
        if not ends[-1]:
            return
        token_ids, values = zip(*edits, strict=True)
        columns = (
            indices.astype(np.int32),
            np.array(ends, np.int32),
            np.concatenate(token_ids),
            np.concatenate(values),
        )
        placed = self._device.place([torch.from_numpy(column) for column in columns])
        self._device.ops.sampling.edit_logits(logits, *placed)

    def _of_row(self, row: int, length: int) -> list[_Edits]:
        features, state, edits = self._state.features[row], self._state, []
        if features & Feature.LOGIT_BIAS:
            edits.append(_Edits(*state.logit_bias[row]))
        if features & Feature.BAD_WORDS:
            edits.append(_Edits.forbidding(self._ends_of_bad_words(row, length)))
        if features & Feature.MIN_TOKENS:
            if length < state.first_end[row]:
                edits.append(_Edits.forbidding(state.end_token_ids[row]))
            elif self._batch.num_tokens[row] >= state.first_end[row]:
                state.drop(row, Feature.MIN_TOKENS)
        return edits

    def _ends_of_bad_words(self, row: int, length: int) -> Int32:
        words = self._state.bad_words[row]
        begin = max(int(self._batch.num_prompt_tokens[row]), length - words.max_prefix)
        return words.forbidden(self._batch.tokens[row, begin:length])
