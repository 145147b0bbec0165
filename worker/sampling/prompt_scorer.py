"""Logprobs of prompt tokens, taken from each prefill chunk as it is computed."""

from __future__ import annotations

import numpy as np
import torch

from splitserve.engine_core.ipc.wire import TokenLogprobs
from splitserve.engine_core.ipc.worker_messages import RowError
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.row_faults import may_be_a_rows, row_fault
from splitserve.worker.batch.sampling_state import Feature
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.device.base import Device
from splitserve.worker.models.base import Model
from splitserve.worker.sampling.logprobs import NO_RANK, Wanted, gather_logprobs, numerical_error


class PromptScorer:
    """Scores the prompt tokens of rows that asked for it; the logits of position p score the token at p + 1.

    The first token of a prompt has no logprob; the last position's logits belong to the first output token.
    """

    def __init__(self, device: Device, model: Model, batch: InputBatch, max_rows: int) -> None:
        """Args: max_rows is how many rows of logits may exist at once."""
        self._device = device
        self._model = model
        self._batch = batch
        self._max_rows = max_rows

    def score(self, hidden: torch.Tensor, inputs: StepInputs) -> tuple[list[TokenLogprobs], list[RowError]]:
        """Score what this step computed of such prompts.

        Args:
            hidden: [T, H] of the step.
            inputs: its layout.

        Returns:
            On the rank that samples, logprobs with `key` the row and `token_index` the position in the
            prompt, ascending per row; and errors of the rows whose logits were not numbers, or
            that raised an exception.
        """
        scored: list[TokenLogprobs] = []
        broken: list[RowError] = []
        for i in self._batch.sampling.rows_with(Feature.PROMPT_LOGPROBS, inputs.rows).tolist():
            entries = self._score_row(hidden, inputs, i)
            if isinstance(entries, RowError):
                broken.append(entries)
            else:
                scored += entries
        return scored, broken

    def _score_row(self, hidden: torch.Tensor, inputs: StepInputs, i: int) -> list[TokenLogprobs] | RowError:
        row, start, offset = int(inputs.rows[i]), int(inputs.starts[i]), int(inputs.cu_seqlens[i])
        last = int(self._batch.num_prompt_tokens[row]) - 1
        end = min(start + int(inputs.cu_seqlens[i + 1]) - offset, last)
        if end == last:
            self._batch.sampling.drop(row, Feature.PROMPT_LOGPROBS)
        scored: list[TokenLogprobs] = []
        fault: RowError | None = None
        for begin in range(start, end, self._max_rows):
            stop = min(begin + self._max_rows, end)
            # After a fault too: the other ranks contribute to these logits.
            logits = self._model.compute_logits(hidden[offset + begin - start : offset + stop - start])
            if logits is None or fault is not None:
                continue
            try:
                scored += gather_logprobs(self._device, logits, self._wanted(row, begin, stop))
            except Exception as error:
                if not may_be_a_rows(error):
                    raise
                fault = row_fault(row, error)
        if fault is None and any(entry.rank == NO_RANK for entry in scored):
            fault = numerical_error(row)
        return fault or scored

    def _wanted(self, row: int, begin: int, stop: int) -> Wanted:
        """The tokens after positions begin..stop-1 of a row."""
        count = stop - begin
        return Wanted(
            keys=np.full(count, row, np.int32),
            indices=np.arange(count, dtype=np.int32),
            token_ids=self._batch.tokens[row, begin + 1 : stop + 1].copy(),
            token_indices=np.arange(begin + 1, stop + 1, dtype=np.int32),
            num_top=np.full(count, self._batch.sampling.num_prompt_logprobs[row], np.int32),
        )
