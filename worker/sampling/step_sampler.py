"""From the hidden states of a step to the tokens of its rows: which logits are computed, what rows take."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from splitserve.worker.batch.row_faults import may_be_a_rows
from splitserve.worker.batch.runs import Runs
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.device.base import Device
from splitserve.worker.models.base import Model
from splitserve.worker.ops.columns import Int32
from splitserve.worker.sampling.sampler import Sampled, Sampler
from splitserve.worker.sampling.step_result import StepResult


class StepSampler:
    """Samples steps and appends the tokens to their rows; single-threaded.

    Attributes:
        sampler: chooses the tokens.
    """

    def __init__(
        self, device: Device, model: Model, sampler: Sampler, max_logits_rows: int, is_alone: bool
    ) -> None:
        """Build a step sampler for the sampler's batch.

        Args:
            device: of the hidden states.
            model: of the logits.
            sampler: see above.
            max_logits_rows: most rows of fp32 logits that may exist at once.
            is_alone: no other rank has to compute logits again if this one does.
        """
        self._device = device
        self._model = model
        self._batch = sampler.batch
        self.sampler = sampler
        self._max_logits_rows = max_logits_rows
        self._is_alone = is_alone

    def sample(self, hidden: torch.Tensor, inputs: StepInputs, result: StepResult) -> None:
        """Sample a token for each row that is due.

        Args:
            hidden: [T, H] of the step, or of its outputs.
            inputs: its layout.
            result: gets the tokens.
        """
        sampling = inputs.sampling
        for begin in range(0, len(sampling), self._max_logits_rows):
            chunk = sampling[begin : begin + self._max_logits_rows]
            chosen = hidden
            # They differ when prompts are scored, and when logits of all rows would take too much memory.
            if len(chunk) != len(hidden):
                chosen = self._states(hidden, inputs.hidden_of(chunk))
            logits = self._model.compute_logits(chosen)
            # If another rank samples, this one contributes its shard of all logits, whatever fails there.
            if logits is not None:
                rows = inputs.rows if len(chunk) == len(inputs.rows) else inputs.rows[chunk]
                for sampled in self._sample_logits(logits, rows, chosen):
                    self.take(sampled, result)

    def sample_runs(self, hidden: torch.Tensor, inputs: StepInputs, result: StepResult) -> Int32:
        """Sample a run of tokens for each row that is due, in a step with drafts; see sample().

        Returns:
            How many drafts of each row that is due counted.
        """
        runs = self._batch.runs(inputs)
        if inputs.outputs is None and len(hidden) != len(runs.places):
            hidden = self._states(hidden, runs.places)
        logits = self._model.compute_logits(hidden)
        # None if another rank samples; see sample().
        if logits is not None:
            for sampled in self._sample_run_logits(logits, runs, hidden):
                self.take(sampled, result)
        rows, before = runs.rows[runs.first], runs.lengths[runs.first]
        num_counted: Int32 = np.maximum(self._batch.num_tokens[rows] - before - np.int32(1), np.int32(0))
        return num_counted

    def take(self, sampled: Sampled, result: StepResult) -> None:
        """Append tokens to their rows, and let rows with an error fail; neither to rows that have failed."""
        batch = self._batch
        if batch.failures:
            sampled = sampled.without(batch.failures)
        if sampled.run_lengths is None:
            batch.append(sampled.rows, sampled.token_ids)
            self.sampler.took(sampled.rows, sampled.token_ids)
        else:
            batch.append_runs(sampled.rows, sampled.last_token_ids, sampled.run_lengths)
            self.sampler.took(sampled.rows, sampled.token_ids, sampled.run_lengths)
        for error in sampled.errors:
            batch.fail(error)
        result.add(sampled)

    def _states(self, hidden: torch.Tensor, places: Int32) -> torch.Tensor:
        return hidden[self._device.place([torch.from_numpy(places)])[0]]

    def _sample_logits(self, logits: torch.Tensor, rows: Int32, hidden: torch.Tensor) -> Iterator[Sampled]:
        """Sample all rows at once; if that raises what may be a row's fault, each by itself."""
        try:
            yield self.sampler.sample(logits, rows)
            return
        except Exception as error:
            # The logits are changed by now, and the other ranks are not there to compute them again.
            if not self._is_alone or not may_be_a_rows(error):
                raise
        yield from self._sample_each(hidden, rows)

    def _sample_run_logits(self, logits: torch.Tensor, runs: Runs, hidden: torch.Tensor) -> Iterator[Sampled]:
        """Sample all runs at once; if that raises what may be a row's fault, each row's first token alone."""
        try:
            yield self.sampler.sample_runs(logits, runs)
            return
        except Exception as error:
            if not self._is_alone or not may_be_a_rows(error):
                raise
        firsts = runs.first.astype("i4")
        yield from self._sample_each(self._states(hidden, firsts), runs.rows[runs.first])

    def _sample_each(self, hidden: torch.Tensor, rows: Int32) -> Iterator[Sampled]:
        for i in range(len(rows)):
            alone = self._model.compute_logits(hidden[i : i + 1])
            assert alone is not None
            yield self.sampler.sample_alone(alone, rows[i : i + 1])
