"""For how many drafts of a row is there room in a step? As many as are cheap and take memory from nobody."""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np

from splitserve.engine_core.config import MAX_CHEAP_ROWS, SchedulerConfig
from splitserve.engine_core.ipc.worker_messages import StageDrafts
from splitserve.engine_core.kv_cache.manager import KVCacheManager
from splitserve.engine_core.scheduler.pacing.step_budget import StepBudget
from splitserve.engine_core.scheduler.run_ahead import MAX_STEPS_AHEAD
from splitserve.engine_core.scheduler.running import IntColumn


class StepDrafts(NamedTuple):
    """What rows may draft in a step.

    Attributes:
        max_drafts: tokens per row that samples.
        reach: int64 [n], the furthest that each row can be after the step, in tokens whose KV is computed.
    """

    max_drafts: int
    reach: IntColumn


class CommittedDrafts(NamedTuple):
    """What a step that goes to the workers may add to its rows by drafts.

    Attributes:
        most: tokens per row that samples.
        told: what the stages of a pipeline compute; None without a pipeline.
    """

    most: int
    told: StageDrafts | None = None


NO_DRAFTS = CommittedDrafts(0)
"""Without speculation."""


class DraftRoom:
    """Bounds of drafts; part of the scheduler.

    Args:
        config: with at least one draft per row.
        kv: blocks of the rows.
        budget: of steps.
    """

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager, budget: StepBudget) -> None:
        max_drafts = config.num_speculative_tokens
        if kv.bounds.has_window:
            # A row's blocks allow for one chunk behind the window, and so for what all steps ahead may add.
            max_drafts = min(max_drafts, kv.bounds.max_chunk // MAX_STEPS_AHEAD - 1)
        self._max_drafts = max(0, max_drafts)
        self._max_chunk = kv.bounds.max_chunk if kv.bounds.has_window else sys.maxsize
        self._kv = kv
        self._budget = budget

    def per_row(self, num_sampling: int, longest_chunk: int = 1) -> int:
        """Return most drafts of each row in a step in which so many rows sample.

        Args:
            num_sampling: rows.
            longest_chunk: tokens of one of them without drafts; windows leave blocks for both together.
        """
        is_short_of_memory = self._budget.num_tokens < self._budget.max_num_tokens
        if num_sampling == 0 or is_short_of_memory:
            return 0
        room = self._max_chunk - longest_chunk
        return max(0, min(self._max_drafts, room, MAX_CHEAP_ROWS // num_sampling - 1))

    def has_blocks(self, rows: IntColumn, reach: IntColumn) -> bool:
        """Whether blocks are free for all that rows [n] lack to hold so many tokens each."""
        missing = np.maximum(reach - self._kv.capacity[rows], 0)
        num_missing = int((-(-missing // self._kv.block_size)).sum())
        return num_missing <= self._kv.cache.pool.num_free // self._kv.blocks_per_entry
