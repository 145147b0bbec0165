"""Who runs a step: is anything drafted for it, and how long does it take then?"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from splitserve.worker.grammar.row_grammars import RowGrammars
from splitserve.worker.graphs.drafted_graphs import DraftedGraphs
from splitserve.worker.ops.columns import Int32
from splitserve.worker.speculation.draft_model.draft_model import DraftModel
from splitserve.worker.speculation.speculator import Speculator

R = TypeVar("R")


class Drafting(NamedTuple):
    """What a runner needs to compute steps with drafts; all of one batch.

    Attributes:
        speculator: drafts.
        grammars: of the rows, which say which drafts they allow.
        graphs: recordings of steps with drafts; None if every step runs eagerly.
        draft_model: one of the drafters, which follows every step; None if it is none of them.
    """

    speculator: Speculator
    grammars: RowGrammars
    graphs: DraftedGraphs | None
    draft_model: DraftModel | None = None

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
        started = time.perf_counter()
        if self.draft_model is not None:
            self.draft_model.follow(step)
        num_drafts = self.speculator.draft(step)
        if num_drafts is not None and not self.grammars.admit(unpack_int32(step.rows), num_drafts):
            num_drafts = None
        self.grammars.work_ahead()
        result = plainly(step) if num_drafts is None else drafted(step, num_drafts)
        is_at_speed = self.draft_model is None or self.draft_model.is_at_speed
        if num_drafts is not None and self.graphs is not None:
            is_at_speed = is_at_speed and self.graphs.is_at_speed
        if is_at_speed:
            self.speculator.took(step, time.perf_counter() - started)
        return result
