"""Who runs a step in a pipeline with drafts? All stages compute what they are told; the last one drafts.

It drafts for a row as soon as it has sampled its tokens, for the row's next step: the first stage has to know
the drafts when that begins. See worker.speculation.drafting for workers that are no stages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch

from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.ipc.worker_messages import RowDrafts, SchedulerOutput
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.step_graphs import StepGraph
from splitserve.worker.batch.step_inputs import NO_ROWS, StepInputs
from splitserve.worker.grammar.row_grammars import RowGrammars
from splitserve.worker.grammar.told_grammars import ToldGrammars
from splitserve.worker.ops.columns import Int32
from splitserve.worker.sampling.step_result import StepResult
from splitserve.worker.speculation.drafter import ModelDrafter
from splitserve.worker.speculation.drafting import read_ahead, reader_of
from splitserve.worker.speculation.speculator import Speculator
from splitserve.worker.speculation.step_times import StepTimes
from splitserve.worker.speculation.told_drafts import ToldDrafts

R = TypeVar("R")


class StageDrafting:
    """What a runner of a stage needs to compute steps with drafts; used by the worker's thread.

    Attributes:
        speculator: drafts; with no drafters on all ranks but the one that samples.
        draft_model: one of the drafters, which follows every step; None if it is none of them.
    """

    def __init__(
        self,
        batch: InputBatch,
        speculator: Speculator,
        grammars: RowGrammars,
        draft_model: ModelDrafter | None = None,
    ) -> None:
        """Args: all of one batch; grammars say which drafts they allow."""
        self.speculator = speculator
        self.draft_model = draft_model
        self._batch = batch
        self._grammars = grammars
        self._told = ToldDrafts(batch)
        self._told_grammars = ToldGrammars(grammars, batch.sampling.grammars)

    def can_follow(self, step: SchedulerOutput) -> bool:
        """Never: a step waits for the stage before."""
        return False

    def leave(self, step: SchedulerOutput) -> None:
        """Take note of the rows that leave with a step, before the batch takes in its changes."""
        if step.freed_rows:
            self.speculator.leave(step)

    def forward(self, inputs: StepInputs) -> torch.Tensor | None:
        """Return None: stages are not recorded."""
        return None

    def took(self, inputs: StepInputs) -> None:
        """Let whoever drafts from what the model computes take note of a pass, before anything is sampled."""
        if (reader := reader_of(self.speculator, self.draft_model)) is not None:
            reader.took(len(inputs.rows), lambda: inputs)

    def took_graph(self, graph: StepGraph) -> None:
        """Never called: stages are not recorded."""

    def run(
        self,
        step: SchedulerOutput,
        plainly: Callable[[SchedulerOutput], R],
        drafted: Callable[[SchedulerOutput, Int32], R],
    ) -> R:
        """Run a step with the drafts that are told, then draft for the next one of its rows.

        Args:
            step: the batch has taken in its changes.
            plainly: runs a step without drafts.
            drafted: runs one with the drafts of each row, int32 [max_num_seqs].
        """
        started = time.perf_counter()
        if self.draft_model is not None:
            self.draft_model.follow(step)
        if step.new_rows:
            # Before the step computes what a head reads of them.
            self.speculator.enter(step)
        num_drafts = self._told.take(step)
        if num_drafts is not None:
            self._told_grammars.expect(unpack_int32(step.rows), num_drafts)
        self._grammars.work_ahead()
        result = plainly(step) if num_drafts is None else drafted(step, num_drafts)
        self.speculator.took(step, StepTimes(started, started, time.perf_counter()), is_at_speed=True)
        if self.speculator.drafts and isinstance(result, StepResult):
            result.next_drafts = self._draft(step, result)
        return result

    def _draft(self, step: SchedulerOutput, result: StepResult) -> RowDrafts | None:
        """Draft behind what the rows of a step have sampled; None if there is nothing."""
        rows = np.concatenate([NO_ROWS, *result.rows])
        packed, ones = pack_int32(rows), pack_int32(np.ones(len(rows), np.int32))
        num_drafts = self.speculator.draft(
            SchedulerOutput(step.step, packed, ones, max_drafts=step.max_drafts)
        )
        if self.draft_model is not None:
            read_ahead(self.speculator, self.draft_model, step)
        if num_drafts is None:
            return None
        self._told_grammars.cut(rows, num_drafts)
        counts = np.maximum(num_drafts[rows], np.int32(0))
        behind = np.arange(int(counts.max(initial=0)))
        places = self._batch.num_tokens[rows][:, None] + behind
        is_draft = behind < counts[:, None]
        token_ids = self._batch.tokens[
            np.broadcast_to(rows[:, None], places.shape)[is_draft], places[is_draft]
        ]
        return RowDrafts(pack_int32(counts), pack_int32(token_ids)) if len(token_ids) else None
