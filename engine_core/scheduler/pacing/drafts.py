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
from typing import NamedTuple

import numpy as np

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.kv_cache.manager import KVCacheManager
from splitserve.engine_core.scheduler.pacing.chunks import Chunks, PlannedStep
from splitserve.engine_core.scheduler.pacing.step_budget import StepBudget
from splitserve.engine_core.scheduler.run_ahead import MAX_STEPS_AHEAD
from splitserve.engine_core.scheduler.running import IntColumn, RunningRows

# Rows of a step, drafts included, up to which a draft is cheap: weights are read once for all of them. Beyond
# it a step's time grows with its rows, and a draft that does not count costs as much as a token.
MAX_CHEAP_ROWS = 64


class StepDrafts(NamedTuple):
    """What rows may draft in a step.

    Attributes:
        max_drafts: tokens per row that samples.
        reach: int64 [n], the furthest that each row can be after the step, in tokens whose KV is computed.
    """

    max_drafts: int
    reach: IntColumn


class Drafts:
    """Decides before blocks are given; part of the scheduler.

    Args:
        config: with at least one draft per row.
        running: the rows.
        kv: their blocks.
        budget: of steps.
        in_flight: the steps in flight.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        running: RunningRows,
        kv: KVCacheManager,
        budget: StepBudget,
        in_flight: Sequence[PlannedStep],
    ) -> None:
        max_drafts = config.num_speculative_tokens
        if kv.bounds.has_window:
            # A row's blocks allow for one chunk behind the window, and so for what all steps ahead may add.
            max_drafts = min(max_drafts, kv.bounds.max_chunk // MAX_STEPS_AHEAD - 1)
        self._max_drafts = max(0, max_drafts)
        self._running = running
        self._kv = kv
        self._budget = budget
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

    def _plan(self, chunks: Chunks, rests: bool) -> StepDrafts:
        running, rows = self._running, chunks.rows
        samples = chunks.ends == running.num_tokens[rows]
        max_drafts = 0 if rests else self._per_row(int(np.count_nonzero(samples)))
        without = chunks.ends + np.where(samples, running.num_possible_drafts[rows], 0)
        longest = np.maximum(running.max_num_computed_tokens[rows], chunks.ends)
        reach = np.minimum(without + np.where(samples, max_drafts, 0), longest)
        num_free = self._kv.cache.pool.num_free // self._kv.blocks_per_entry
        if max_drafts and self._num_missing_blocks(rows, reach) > num_free:
            return StepDrafts(0, np.minimum(without, longest))
        return StepDrafts(max_drafts, reach)

    def _per_row(self, num_sampling: int) -> int:
        is_short_of_memory = self._budget.num_tokens < self._budget.max_num_tokens
        if num_sampling == 0 or is_short_of_memory:
            return 0
        return max(0, min(self._max_drafts, MAX_CHEAP_ROWS // num_sampling - 1))

    def _num_missing_blocks(self, rows: IntColumn, reach: IntColumn) -> int:
        missing = np.maximum(reach - self._kv.capacity[rows], 0)
        return int((-(-missing // self._kv.block_size)).sum())


def make_drafts(
    config: SchedulerConfig,
    running: RunningRows,
    kv: KVCacheManager,
    budget: StepBudget,
    in_flight: Sequence[PlannedStep],
) -> Drafts | None:
    """Return what decides about drafts, see there; None without speculation."""
    return Drafts(config, running, kv, budget, in_flight) if config.num_speculative_tokens else None
