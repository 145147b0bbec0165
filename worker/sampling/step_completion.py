"""What a step's hidden states are made into: scores of prompts, tokens of rows, or vectors of prompts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from splitserve.worker.batch.agreement import Agreement
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.device.base import Device
from splitserve.worker.models.base import Model
from splitserve.worker.ops.columns import Int32
from splitserve.worker.sampling.pooler import Pooler
from splitserve.worker.sampling.prompt_scorer import PromptScorer
from splitserve.worker.sampling.sampler import Sampler
from splitserve.worker.sampling.step_result import RowEnds, StepResult
from splitserve.worker.sampling.step_sampler import StepSampler

# Called with rows, the drafts that each had, and how many of them counted, int32 [n] each; says who drafted.
Learn: TypeAlias = Callable[[Int32, Int32, Int32], list[RowEnds]]


class StepCompletion:
    """Completes steps of one batch, with all sampling features; single-threaded."""

    def __init__(
        self,
        device: Device,
        model: Model,
        sampler: Sampler,
        max_logits_rows: int,
        pooler: Pooler | None,
        agreement: Agreement | None,
        is_first: bool,
    ) -> None:
        """Build it for the sampler's batch.

        Args:
            device: of the hidden states.
            model: of the logits.
            sampler: chooses the tokens.
            max_logits_rows: most rows of fp32 logits that may exist at once.
            pooler: makes vectors of prompts instead of sampling; None samples.
            agreement: with the ranks that shard each layer; None if this rank holds all of it.
            is_first: of these ranks, so that vectors are made here.
        """
        self._batch = batch = sampler.batch
        self._pooler = pooler
        self._agreement = agreement
        self._is_first = is_first
        self._sampling = StepSampler(device, model, sampler, max_logits_rows, agreement is None)
        self._prompt_scorer = PromptScorer(device, model, batch, max_logits_rows)

    def complete(self, hidden: torch.Tensor, inputs: StepInputs, learn: Learn | None = None) -> StepResult:
        """Return what a step has produced, and put it into the batch.

        Args:
            hidden: [T, H] of the step, or of its outputs.
            inputs: its layout.
            learn: tells whoever drafted how many drafts counted; needed if some were drafted.
        """
        failures = self._batch.failures
        # While the step was held, the one before may have failed rows: they get nothing in this one.
        failed_since = [failures[row] for row in inputs.rows.tolist() if row in failures] if failures else []
        result = StepResult([*inputs.errors, *failed_since])
        if self._pooler is not None:
            self._pool(hidden, inputs, result, self._pooler)
        else:
            self._score_prompts(hidden, inputs, result)
            if inputs.num_drafts is None:
                self._sampling.sample(hidden, inputs, result)
            elif len(inputs.sampling):
                assert learn is not None, "somebody drafted"
                self._sample_runs(hidden, inputs, inputs.num_drafts, result, learn)
        if self._agreement is not None:
            self._agreement.settle(inputs.rows, result.chosen, has_drafts=inputs.num_drafts is not None)
        return result

    def _sample_runs(
        self,
        hidden: torch.Tensor,
        inputs: StepInputs,
        num_drafts: Int32,
        result: StepResult,
        learn: Learn,
    ) -> None:
        num_counted = self._sampling.sample_runs(hidden, inputs, result)
        rows, drafts = inputs.rows[inputs.sampling], num_drafts[inputs.sampling]
        result.drafters = learn(rows, drafts, num_counted)

    def _pool(self, hidden: torch.Tensor, inputs: StepInputs, result: StepResult, pooler: Pooler) -> None:
        if not self._is_first:
            return pooler.assist(hidden, inputs)
        sampled, result.pooled = pooler.pool(hidden, inputs)
        self._sampling.take(sampled, result)

    def _score_prompts(self, hidden: torch.Tensor, inputs: StepInputs, result: StepResult) -> None:
        result.prompt_logprobs, broken = self._prompt_scorer.score(hidden, inputs)
        broken = [error for error in broken if error.row not in self._batch.failures]
        result.errors += broken
        for error in broken:
            self._batch.fail(error)
