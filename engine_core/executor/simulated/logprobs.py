"""Which logprobs does a simulated model report? The token is likeliest, each id above it half as likely."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.ipc.codec import pack_float32, pack_int32
from splitserve.engine_core.ipc.wire import TokenLogprobs
from splitserve.engine_core.sequence_sampling import SequenceSampling

IntColumn = npt.NDArray[np.int64]


class _Row(NamedTuple):
    """A row that asks for logprobs, of its tokens or its prompt."""

    sampling: SequenceSampling
    prompt: list[int]


class SimulatedLogprobs:
    """The rows that ask for logprobs, and what they are told.

    Args:
        vocab_size: ids go on at 0 behind the last one.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rows: dict[int, _Row] = {}

    def enter(self, row: int, sampling: SequenceSampling, prompt: npt.NDArray[np.int32]) -> None:
        """Register a new row if it asks for logprobs."""
        if sampling.logprobs is not None or sampling.prompt_logprobs is not None:
            self._rows[row] = _Row(sampling, prompt.tolist())

    def free(self, row: int) -> None:
        """Forget a row."""
        self._rows.pop(row, None)

    def of_tokens(
        self, rows: IntColumn, positions: IntColumn, token_ids: npt.NDArray[np.int32]
    ) -> list[TokenLogprobs]:
        """Return the logprobs of the tokens that the rows sampled.

        Args:
            rows: [n].
            positions: [n], of the tokens in their sequences.
            token_ids: [n].
        """
        if not self._rows:
            return []
        found = []
        columns = zip(rows.tolist(), positions.tolist(), token_ids.tolist(), strict=True)
        for number, position, token_id in columns:
            row = self._rows.get(number)
            if row is not None and row.sampling.logprobs is not None:
                index, asked = position - len(row.prompt), row.sampling.logprob_token_ids
                found.append(self._logprob((number, index), token_id, row.sampling.logprobs, asked))
        return found

    def of_prompts(self, rows: IntColumn, start: IntColumn, end: IntColumn) -> list[TokenLogprobs]:
        """Return what the rows are told of the prompt tokens behind positions start..end-1; all [n].

        Logits at position p are those of token p + 1, so the first prompt token has no logprob.
        """
        if not self._rows:
            return []
        found = []
        for number, first, last in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
            row = self._rows.get(number)
            if row is None or row.sampling.prompt_logprobs is None:
                continue
            for index in range(first + 1, min(last, len(row.prompt) - 1) + 1):
                found.append(self._logprob((number, index), row.prompt[index], row.sampling.prompt_logprobs))
        return found

    def _logprob(
        self, place: tuple[int, int], token_id: int, num_top: int, asked: tuple[int, ...] = ()
    ) -> TokenLogprobs:
        """Return a token's entry, `place` being its row and index; `asked` ids are told beside the top."""
        row, index = place
        vocab_size, log_half = self._vocab_size, -float(np.log(2))
        top = [(token_id + i) % vocab_size for i in range(num_top)]
        values = [(i + 1) * log_half for i in range(num_top)]
        values += [((other - token_id) % vocab_size + 1) * log_half for other in asked]
        return TokenLogprobs(
            row, index, 1, pack_int32([token_id, *top, *asked]), pack_float32([log_half, *values])
        )
