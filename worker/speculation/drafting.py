"""Who runs a step: is anything drafted for it, and how long does it take then?"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import torch

from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from splitserve.worker.batch.step_graphs import DraftedStepGraphs, StepGraph, StepGraphs
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.grammar.row_grammars import RowGrammars
from splitserve.worker.ops.columns import Int32
from splitserve.worker.sampling.step_result import StepRunning, StepToDraw
from splitserve.worker.speculation.drafter import ModelDrafter
from splitserve.worker.speculation.shared_drafts import SharedDrafts
from splitserve.worker.speculation.speculator import Speculator
from splitserve.worker.speculation.step_times import StepTimes

R = TypeVar("R")


class Drafting(NamedTuple):
    """What a runner needs to compute steps with drafts; all of one batch.

    Attributes:
        speculator: drafts.
        grammars: of the rows, which say which drafts they allow.
        graphs: of steps with drafts; None if each runs eagerly.
        draft_model: one of the drafters, which follows every step; None if it is none of them.
        plain_graphs: of steps without drafts; None if each runs eagerly.
        shared: tells the other ranks of a group; None if there are none. Only rank 0 drafts.
    """

    speculator: Speculator
    grammars: RowGrammars
    graphs: DraftedStepGraphs | None
    draft_model: ModelDrafter | None = None
    plain_graphs: StepGraphs | None = None
    shared: SharedDrafts | None = None

    def can_follow(self, step: SchedulerOutput) -> bool:
        """Whether a step needs nothing of the tokens of a step in flight: drafts come behind these."""
        if step.max_drafts or self.speculator.may_end(step):
            return False
        return self.draft_model is None or not self.draft_model.has_unread

    def leave(self, step: SchedulerOutput) -> None:
        """Take note of the rows that leave with a step, before the batch takes in its changes."""
        if step.freed_rows:
            self.speculator.leave(step)

    def forward(self, inputs: StepInputs) -> torch.Tensor | None:
        """Run a step with drafts from a graph, see DraftedStepGraphs.forward; None if there is none."""
        hidden = None if self.graphs is None else self.graphs.forward(inputs)
        if hidden is not None:
            self.took(inputs)
        return hidden

    def took(self, inputs: StepInputs) -> None:
        """Let whoever drafts from what the model computes take note of a pass, before anything is sampled."""
        if (reader := self._reader) is not None:
            reader.took(len(inputs.rows), lambda: inputs)

    def took_graph(self, graph: StepGraph) -> None:
        """The same of one from a graph without drafts."""
        if (reader := self._reader) is not None:
            reader.took(len(graph.rows), graph.inputs)

    def run(
        self,
        step: SchedulerOutput,
        plainly: Callable[[SchedulerOutput], R],
        drafted: Callable[[SchedulerOutput, Int32], R],
    ) -> R:
        """Draft for a step, run it, and note how long it took if that is worth knowing.

        Args:
            step: the batch has taken in its changes.
            plainly: runs a step without drafts.
            drafted: runs one with the drafts of each row, see Speculator.draft.
        """
        begun = time.perf_counter()
        if self.draft_model is not None:
            self.draft_model.follow(step)
        if self.speculator.passes(step):
            self.grammars.work_ahead()
            return plainly(step)
        num_drafts = self.speculator.draft(step)
        if self.draft_model is not None:
            read_ahead(self.speculator, self.draft_model, step)
        started = time.perf_counter()
        if num_drafts is not None and not self.grammars.admit(unpack_int32(step.rows), num_drafts):
            num_drafts = None
        if self.shared is not None:
            num_drafts = self.shared.share(step, num_drafts)
        self.grammars.work_ahead()
        result = plainly(step) if num_drafts is None else drafted(step, num_drafts)
        if isinstance(result, StepRunning | StepToDraw):
            if self.plain_graphs is None or self.plain_graphs.is_at_speed:
                result.when_done(partial(self.speculator.took_plainly, step))
            return result
        graphs = self.plain_graphs if num_drafts is None else self.graphs
        is_at_speed = graphs is None or graphs.is_at_speed
        self.speculator.took(step, StepTimes(begun, started, time.perf_counter()), is_at_speed=is_at_speed)
        return result

    @property
    def _reader(self) -> ModelDrafter | None:
        return reader_of(self.speculator, self.draft_model)


def reader_of(speculator: Speculator, draft_model: ModelDrafter | None) -> ModelDrafter | None:
    """Return who may read what a step computes; None if all rows pause for so long that nobody will."""
    if draft_model is None or speculator.known_rest > _max_pause(speculator, draft_model):
        return None
    return draft_model


def read_ahead(speculator: Speculator, reader: ModelDrafter, step: SchedulerOutput) -> None:
    """Let a drafter read what a step has computed of rows that it has not drafted for."""
    pauses = partial(speculator.pauses, reader.method)
    seconds = reader.read_ahead(pauses, _max_pause(speculator, reader))
    if seconds and reader.is_at_speed:
        speculator.read_ahead(step, seconds)


def _max_pause(speculator: Speculator, reader: ModelDrafter) -> int:
    return speculator.num_affordable_reads(reader.max_pause)
