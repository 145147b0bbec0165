"""Which drafts do rows compute next in a pipeline? Those that its last stage made behind their last tokens.

The last stage alone has a row's token when it is sampled, so it drafts there and then, and says so in the
output of the step. The first stage needs the drafts as it needs the token: both go with the row's next step,
which is planned once they are known. So here the engine knows exactly how many drafts a step computes.
"""

from __future__ import annotations

import numpy as np

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.errors import ProtocolError, WorkerError
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.ipc.worker_messages import RowDrafts, StageDrafts
from splitserve.engine_core.kv_cache.manager import KVCacheManager
from splitserve.engine_core.scheduler.pacing.chunks import Chunks
from splitserve.engine_core.scheduler.pacing.draft_room import CommittedDrafts, DraftRoom, StepDrafts
from splitserve.engine_core.scheduler.pacing.step_budget import StepBudget
from splitserve.engine_core.scheduler.running import IntColumn, RunningRows
from splitserve.engine_core.scheduler.stopping import StopRules


class PipelineDrafts:
    """Keeps the drafts of rows from one step to their next; part of the scheduler.

    Args:
        config: with at least one draft per row, and several stages.
        running: the rows.
        kv: their blocks.
        budget: of steps.
        room: for drafts.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        running: RunningRows,
        kv: KVCacheManager,
        budget: StepBudget,
        room: DraftRoom,
    ) -> None:
        self._running = running
        self._kv = kv
        self._budget = budget
        self._room = room
        self._fills_blocks = config.drafts_fill_blocks
        self._places: IntColumn = np.arange(config.num_speculative_tokens)
        self._token_ids = np.zeros((config.max_num_seqs, config.num_speculative_tokens), np.int32)
        self._counts: IntColumn = np.zeros(config.max_num_seqs, np.int64)
        # The step behind which a row's drafts stand; one that has its row since then has others.
        self._kept_at: IntColumn = np.zeros(config.max_num_seqs, np.int64)
        # The last step in which nobody drafts.
        self._rests_until = 0

    def rest(self, step: int, num_steps: int) -> None:
        """Take note that nobody will draft in so many steps behind a step that was applied."""
        self._rests_until = step + num_steps

    def plan(self, chunks: Chunks, step: int) -> StepDrafts:
        """Return how much may be drafted behind a step, and how far its rows get with their drafts."""
        samples = chunks.ends == self._running.num_tokens[chunks.rows]
        max_drafts = 0 if step <= self._rests_until else self._room.per_row(int(np.count_nonzero(samples)))
        reach = chunks.ends + self._counts_of(chunks)
        if not self._room.has_blocks(chunks.rows, reach):
            return StepDrafts(max_drafts, chunks.ends)
        if max_drafts and self._fills_blocks:
            # Drafts behind the step are computed where they are made, all but the last, and before them the
            # token that the step samples: their blocks come one step early, where some are free.
            longest = np.maximum(self._running.max_num_computed_tokens[chunks.rows], reach)
            further = np.minimum(reach + np.where(samples, max_drafts, 0), longest)
            reach = further if self._room.has_blocks(chunks.rows, further) else reach
        return StepDrafts(max_drafts, reach)

    def commit(self, chunks: Chunks, sampling_rows: IntColumn, max_drafts: int) -> CommittedDrafts:
        """Return what goes with a step whose rows have their blocks; what is told is kept no longer.

        Args:
            chunks: of the step.
            sampling_rows: int64 [m], those of its rows that sample.
            max_drafts: what may be drafted behind it, which says nothing of the step itself.
        """
        rows, num_tokens, ends = chunks
        counts = np.minimum(self._counts_of(chunks), np.maximum(self._kv.capacity[rows] - ends, 0))
        left = max(0, self._budget.num_tokens - int(num_tokens.sum()))
        counts = np.clip(left - (np.cumsum(counts) - counts), 0, counts)
        self._counts[rows] = 0
        most = int(counts.max())
        self._running.num_possible_drafts[sampling_rows] += most
        known = pack_int32(self._running.num_known_tokens[rows])
        if not most:
            return CommittedDrafts(0, StageDrafts(known))
        token_ids = self._token_ids[rows][self._places < counts[:, None]]
        return CommittedDrafts(most, StageDrafts(known, pack_int32(counts), pack_int32(token_ids)))

    def keep(self, step: int, rows: IntColumn, drafts: RowDrafts, stops: StopRules) -> None:
        """Keep what was drafted behind a step for the next one of its rows.

        Args:
            step: that was computed.
            rows: int64 [n], that sampled.
            drafts: of these rows, as they came.
            stops: know the vocabulary.

        Raises:
            WorkerError: they are malformed; then nothing is kept.
        """
        try:
            counts, token_ids = unpack_int32(drafts.counts), unpack_int32(drafts.token_ids)
        except ProtocolError as error:
            raise WorkerError(f"drafts behind step {step}: {error}") from None
        is_sound = len(counts) == len(rows) and not np.any((counts < 0) | (counts > len(self._places)))
        if not is_sound or len(token_ids) != counts.sum() or not stops.knows(token_ids):
            raise WorkerError(f"the drafts behind step {step} are not those of {len(rows)} rows")
        self._kept_at[rows] = step
        self._counts[rows] = counts
        is_draft = self._places < counts[:, None]
        self._token_ids[rows.repeat(counts), np.nonzero(is_draft)[1]] = token_ids

    def _counts_of(self, chunks: Chunks) -> IntColumn:
        """Return how many drafts of each row the step computes, if there are blocks and tokens left."""
        running, (rows, _, ends) = self._running, chunks
        samples = ends == running.num_tokens[rows]
        has_drafts = samples & (running.first_step[rows] <= self._kept_at[rows])
        # Behind the last token that ever needs computing nothing is drafted.
        most = np.minimum(
            self._room.per_row(int(np.count_nonzero(samples))), running.max_num_computed_tokens[rows] - ends
        )
        counts: IntColumn = np.where(has_drafts, np.clip(self._counts[rows], 0, np.maximum(most, 0)), 0)
        return counts
