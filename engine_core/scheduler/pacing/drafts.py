"""How many drafted tokens may rows compute in a step, and how far can rows be that do?

Workers draft, since a token is known there first; the next step is planned, and may be on its way, before
the engine knows how many drafts counted. So it plans with bounds: counts in the columns are those without any
draft, and RunningRows.num_possible_drafts says by how many a row may be ahead of them. Blocks are given for
the furthest that a row can be. The output of a step makes the counts right
(engine_core.scheduler.apply).

Where no row would draft for some steps, as none has paid off lately, the worker says so, and they are planned
as without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.kv_cache.manager import KVCacheManager
from splitserve.engine_core.scheduler.pacing.chunks import Chunks, PlannedStep
from splitserve.engine_core.scheduler.pacing.draft_room import CommittedDrafts, DraftRoom, StepDrafts
from splitserve.engine_core.scheduler.pacing.pipeline_drafts import PipelineDrafts
from splitserve.engine_core.scheduler.pacing.step_budget import StepBudget
from splitserve.engine_core.scheduler.running import IntColumn, RunningRows


class Drafts:
    """Decides before blocks are given; part of the scheduler.

    Args:
        running: the rows.
        room: for their drafts.
        in_flight: the steps in flight.
    """

    def __init__(self, running: RunningRows, room: DraftRoom, in_flight: Sequence[PlannedStep]) -> None:
        self._running = running
        self._room = room
        self._in_flight = in_flight
        # The last step in which nobody drafts, and the last one in which somebody may have.
        self._rests_until = self._last_drafting = 0

    def rest(self, step: int, num_steps: int) -> None:
        """Take note that nobody will draft in so many steps behind a step that was applied."""
        self._rests_until = step + num_steps

    def plan(self, chunks: Chunks, step: int) -> StepDrafts:
        """Return what the rows of a step may draft: nothing where it would take memory from anybody."""
        rests = step <= self._rests_until
        if rests and (not self._in_flight or self._in_flight[0].step > self._last_drafting):
            # No row is ahead of its counts.
            return StepDrafts(0, chunks.ends)
        planned = self._plan(chunks, rests)
        if planned.max_drafts:
            self._last_drafting = step
        return planned

    def commit(self, chunks: Chunks, sampling_rows: IntColumn, max_drafts: int) -> CommittedDrafts:
        """Take note that a step is planned, in which these rows may draft so many tokens each."""
        if max_drafts:
            self._running.num_possible_drafts[sampling_rows] += max_drafts
        return CommittedDrafts(max_drafts)

    def _plan(self, chunks: Chunks, rests: bool) -> StepDrafts:
        running, rows = self._running, chunks.rows
        samples = chunks.ends == running.num_tokens[rows]
        longest_chunk = int(chunks.num_tokens.max(where=samples, initial=1))
        max_drafts = 0 if rests else self._room.per_row(int(np.count_nonzero(samples)), longest_chunk)
        without = chunks.ends + np.where(samples, running.num_possible_drafts[rows], 0)
        longest = np.maximum(running.max_num_computed_tokens[rows], chunks.ends)
        reach = np.minimum(without + np.where(samples, max_drafts, 0), longest)
        if max_drafts and not self._room.has_blocks(rows, reach):
            return StepDrafts(0, np.minimum(without, longest))
        return StepDrafts(max_drafts, reach)


def make_drafts(
    config: SchedulerConfig,
    running: RunningRows,
    kv: KVCacheManager,
    budget: StepBudget,
    in_flight: Sequence[PlannedStep],
) -> Drafts | PipelineDrafts | None:
    """Return what decides about drafts, see there; None without speculation."""
    if not config.num_speculative_tokens:
        return None
    room = DraftRoom(config, kv, budget)
    if config.num_stages > 1:
        return PipelineDrafts(config, running, kv, budget, room)
    return Drafts(running, room, in_flight)
