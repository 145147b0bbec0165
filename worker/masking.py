"""Which tokens a row may not sample now: not allowed ones, ends of bad words, ends that come too early."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from worker.input_batch import InputBatch, Int32
from worker.sampling_state import Feature


class TokenMasker:
    """Sets the logits of tokens that may not be drawn to -inf; loops only over rows that have such tokens."""

    def __init__(self, batch: InputBatch) -> None:
        """Args: batch owns the rows; nothing of it is changed but features that a row has outlived."""
        self._batch = batch
        self._state = batch.sampling

    def apply(self, logits: torch.Tensor, rows: Int32) -> None:
        """Mask in place.

        Args:
            logits: float32 [S, V], contiguous.
            rows: int32 [S], distinct rows of the batch; logits[i] belongs to rows[i].
        """
        self._keep_allowed(logits, rows)
        self._mask(logits, *self._bad_words(rows))
        self._mask(logits, *self._early_ends(rows))

    def _keep_allowed(self, logits: torch.Tensor, rows: Int32) -> None:
        indices = self._state.rows_with(Feature.ALLOWED_TOKEN_IDS, rows)
        if not len(indices):
            return
        flat, which = logits.view(-1), torch.from_numpy(indices).to(logits.device)
        token_ids = [self._state.allowed_token_ids[row] for row in rows[indices].tolist()]
        places = flat_places(indices, token_ids, logits)
        kept, all_of_rows = flat[places], logits[which]
        # A NaN stays: such a row has to fail whatever it allows.
        logits[which] = torch.where(all_of_rows.isnan(), all_of_rows, -torch.inf)
        flat[places] = kept

    def _bad_words(self, rows: Int32) -> tuple[npt.NDArray[np.intp], list[torch.Tensor]]:
        indices = self._state.rows_with(Feature.BAD_WORDS, rows)
        token_ids = []
        for row in rows[indices].tolist():
            words, end = self._state.bad_words[row], int(self._batch.num_tokens[row])
            begin = max(int(self._batch.num_prompt_tokens[row]), end - words.max_prefix)
            token_ids.append(words.forbidden(self._batch.tokens[row, begin:end]))
        return indices, token_ids

    def _early_ends(self, rows: Int32) -> tuple[npt.NDArray[np.intp], list[torch.Tensor]]:
        """Rows below min_tokens and what would end them; the others lose the feature."""
        indices = self._state.rows_with(Feature.MIN_TOKENS, rows)
        below = self._batch.num_tokens[rows[indices]] < self._state.first_end[rows[indices]]
        for row in rows[indices[~below]].tolist():
            self._state.drop(row, Feature.MIN_TOKENS)
        indices = indices[below]
        return indices, [self._state.end_token_ids[row] for row in rows[indices].tolist()]

    @staticmethod
    def _mask(logits: torch.Tensor, indices: npt.NDArray[np.intp], token_ids: list[torch.Tensor]) -> None:
        if len(indices):
            logits.view(-1).index_fill_(0, flat_places(indices, token_ids, logits), -torch.inf)


def flat_places(
    indices: npt.NDArray[np.intp], token_ids: Sequence[torch.Tensor], logits: torch.Tensor
) -> torch.Tensor:
    """Places, int64, of the token ids of each index in logits [S, V] seen as one vector, on their device."""
    width = logits.shape[1]
    places = torch.cat([ids + i * width for i, ids in zip(indices.tolist(), token_ids, strict=True)])
    return places.to(logits.device)
