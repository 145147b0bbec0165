"""What does the next step compute: which rows, how many tokens of each, with which blocks?

One rule covers prefill, chunks, prefix hits, resumption and decode: every row wants its num_computed_tokens
to reach its num_tokens, and a step spends its token budget on that, running rows first, then the
queue. Planning reads counts only, never token values, so the next step can be planned while the last one
still runs.

Rows are served and preempted in one total order, (priority or 0, arrival); the policy orders admission.
The first row can always go on: it is served first and never preempted for another, so nobody starves.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from splitserve.engine_core.config import SchedulerConfig, max_steps_in_flight
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.engine_core.kv_cache.costs import KVCosts
from splitserve.engine_core.kv_cache.manager import KVCacheManager
from splitserve.engine_core.kv_cache.offload import NO_MOVES
from splitserve.engine_core.request import Request, RequestState
from splitserve.engine_core.scheduler.integrity import check_integrity
from splitserve.engine_core.scheduler.memory_retries import MemoryRetries
from splitserve.engine_core.scheduler.microbatch import microbatch
from splitserve.engine_core.scheduler.pacing.chunks import Chunks, DecodeCounts, PlannedStep
from splitserve.engine_core.scheduler.pacing.draft_room import NO_DRAFTS
from splitserve.engine_core.scheduler.pacing.drafts import make_drafts
from splitserve.engine_core.scheduler.pacing.prefill_cap import CapBeside, PrefillRoom, cap_prefill
from splitserve.engine_core.scheduler.pacing.step_budget import StepBudget
from splitserve.engine_core.scheduler.row_admission import RowAdmission
from splitserve.engine_core.scheduler.run_ahead import RunAhead
from splitserve.engine_core.scheduler.running import NEVER, ONE, IntColumn, RunningRows
from splitserve.engine_core.scheduler.stopping import StopRules
from splitserve.engine_core.scheduler.victims import Victims
from splitserve.engine_core.scheduler.waiting.policies import make_queue
from splitserve.engine_core.scheduler.waiting.queues import WaitingQueue


class _Growth(NamedTuple):
    """Blocks appended to running rows in one step, and whether there were too few."""

    rows: list[int]
    block_ids: list[int]
    is_scarce: bool


class Scheduler:
    """Plans steps over the waiting queue, the running rows and their blocks; integers only, no clock, no I/O.

    Attributes:
        num_preemptions: preemptions since start.
        budget: tokens the next step may compute.
        kv: blocks of the rows.
        stops: which tokens end their request.
        row_admission: moves requests from the queue to free rows.
        memory_retries: requests that restart after a step ran out of memory.
        drafts: how many tokens rows may draft; None without speculation.
        run_ahead: whether short steps may be planned beyond the usual number.
        is_short_of_blocks: whether the last step could have computed more with more blocks.
    """

    def __init__(self, config: SchedulerConfig, stops: StopRules, kv: KVCacheManager, costs: KVCosts) -> None:
        self.stops = stops
        self.kv = kv
        self.waiting: WaitingQueue = make_queue(config.policy, config.max_num_seqs, config.tenant_weights)
        self.running = RunningRows(config.max_num_seqs, config.block_size)
        self.row_admission = RowAdmission(config, self.waiting, self.running, kv, stops)
        self.budget = StepBudget(config.max_num_batched_tokens)
        self.memory_retries = MemoryRetries(self.budget, self.running)
        self._victims = Victims(config.victim, kv, self.running, costs)
        self.in_flight: deque[PlannedStep] = deque()
        self._max_in_flight = max_steps_in_flight(config.num_stages)
        self.run_ahead = RunAhead(self.running, kv.bounds.max_chunk, config.num_stages)
        self.num_preemptions = 0
        self.is_short_of_blocks = False
        self._num_stages = config.num_stages
        self._has_window = kv.bounds.has_window
        self._offload = kv.cache.offload
        self._max_chunk = kv.bounds.max_chunk
        self.drafts = make_drafts(config, self.running, kv, self.budget, self.in_flight)
        self._decode_counts = DecodeCounts()
        self._next_step = 1
        self._freed_rows: list[int] = []

    def add(self, request: Request) -> None:
        """Queue a new request; the engine has checked the request and the queue's limits."""
        self.waiting.add(request)

    def remove(self, request: Request) -> None:
        """Remove a request that has finished, failed, timed out or been aborted, running or waiting."""
        if request.state is RequestState.WAITING:
            self.waiting.remove(request)
        elif request.state is RequestState.RUNNING:
            self._leave_row(request.row)
        request.state = RequestState.ENDED

    def take_back(self, rows: list[int], num_tokens: int) -> list[Request]:
        """Take rows off the batch whose step of num_tokens ran out of memory; they are admitted again later.

        No work of a step in flight is lost: the worker no longer touches these rows.

        Returns:
            The requests to which this has happened too often; they are waiting, and have to be removed.
        """
        return self.memory_retries.take_back([self._suspend(row) for row in rows], num_tokens)

    def start_over(self) -> None:
        """Forget the steps in flight and all KV, which went with the workers; running requests wait again.

        They keep their places in the order and their tokens, without those that steps in flight sample: these
        are sampled again, and are the same.
        """
        running = self.running
        rows = running.order
        self.in_flight.clear()
        # Nobody pays twice for a token that is computed again.
        known = running.num_known_tokens[rows]
        running.num_computed_tokens[rows] = np.minimum(running.num_computed_tokens[rows], known)
        # Last in order first: each is then the head of the queue, which is found at once.
        for row in rows[::-1].tolist():
            self._requeue(row)
        self._freed_rows.clear()
        self.is_short_of_blocks = False
        self.reset_prefix_cache()
        if self._offload is not None:
            self._offload.drop_moves()

    def schedule(self, cap_beside: CapBeside | None = None) -> SchedulerOutput | None:
        """Plan the next step; None when nothing can run until a step is applied or a request arrives.

        Args:
            cap_beside: returns the prefill cap for a number of decoding rows, at least 1; called only if the
                step could prefill. None for no cap besides the budget.
        """
        if len(self.in_flight) >= self._max_in_flight and not (
            self._is_closed and self.run_ahead.has_room(self.in_flight)
        ):
            return None
        chunks, room = self._wanted(cap_beside)
        if self._has_window:
            running = self.running.order
            self.kv.leave_window(running, self.running.num_computed_tokens[running])
        max_drafts, reach = self.drafts.plan(chunks, self._next_step) if self.drafts else (0, chunks.ends)
        chunks, growth = self._give_blocks(chunks, reach)
        self.is_short_of_blocks = growth.is_scarce
        new_rows: list[NewRow] = []
        if len(self.waiting) and not growth.is_scarce:
            admitted = self.row_admission.admit(chunks, room, self.budget.num_tokens, self._next_step)
            chunks, new_rows, self.is_short_of_blocks = admitted
        if len(chunks.rows) == 0:
            return None
        return self._commit(chunks, new_rows, growth, max_drafts)

    def reset_prefix_cache(self) -> int:
        """Forget all cached prefixes, for waiting requests too; returns how many blocks held one."""
        num_dropped = self.kv.reset_prefix_cache()
        for request in self.waiting:
            request.leader = None
            request.block_hashes.clear()
            namespace = self.kv.cache.index.namespace
            request.namespace = namespace(request.tenant, request.cache_salt, request.adapter_key)
        return num_dropped

    def check_integrity(self) -> None:
        """Raise IntegrityError unless queue, rows, blocks and steps in flight agree."""
        check_integrity(self.waiting, self.running, self.kv, self.in_flight)

    def _wanted(self, cap_beside: CapBeside | None) -> tuple[Chunks, PrefillRoom | None]:
        """Return what the running rows compute if there are enough blocks, and what is left of a cap."""
        running = self.running
        rows = microbatch(running, self._num_stages)
        if len(rows) == 0:
            return Chunks(rows, rows, rows), None
        ready = np.minimum(running.num_tokens[rows], running.max_num_computed_tokens[rows])
        contexts = running.num_computed_tokens[rows]
        num_tokens = ready - contexts
        budget = self.budget.num_tokens
        num_decoding = int(np.count_nonzero(num_tokens == ONE))
        everyone_decodes = num_decoding == len(rows) <= budget
        room = None
        if cap_beside is not None and num_decoding and not (everyone_decodes and self._is_closed):
            # Every decoding row keeps its token as far as the budget allows: prefill leaves room for them.
            room = PrefillRoom(cap_beside(num_decoding), max(1, budget - num_decoding))
        if everyone_decodes:
            return Chunks(rows, self._decode_counts.of(num_decoding), contexts + ONE), room
        num_tokens = np.minimum(num_tokens, self._max_chunk)
        if room is not None:
            num_tokens = cap_prefill(room, num_tokens, contexts)
        if num_tokens.sum() > budget:
            before = np.cumsum(num_tokens) - num_tokens
            num_tokens = np.clip(budget - before, 0, num_tokens)
        chunks = Chunks(rows, num_tokens, contexts + num_tokens)
        return chunks if num_tokens.min() else chunks.select(num_tokens > 0), room

    @property
    def _is_closed(self) -> bool:
        """Whether nobody can be admitted now."""
        return not len(self.waiting) or not self.running.num_free_rows

    def _give_blocks(self, chunks: Chunks, reach: IntColumn) -> tuple[Chunks, _Growth]:
        """Allocate the blocks that rows grow into, up to `reach` tokens each, preempting others if need be.

        A victim comes after the row that needs its blocks, so it has not been served yet and nothing has to
        be undone. With a step in flight nobody is preempted: its output may free blocks, and a victim's token
        that is still being sampled would be wasted work. Nothing is planned then, so that the step ends soon.
        """
        growth = _Growth([], [], False)
        capacity = self.kv.capacity[chunks.rows]
        crossing = (reach > capacity).nonzero()[0]
        if len(crossing) == 0:
            return chunks, growth
        crossing_rows = chunks.rows[crossing]
        counts = -(-(reach - capacity)[crossing] // self.kv.block_size)
        num_wanted = counts * self.kv.blocks_per_entry if self.kv.num_window_groups else counts
        if int(num_wanted.sum()) <= self.kv.cache.pool.num_free:
            self._grow(growth, crossing_rows, counts)
            return chunks, growth
        if self.in_flight:
            return chunks.select(slice(0)), growth._replace(is_scarce=True)
        for i, (row, wanted) in enumerate(zip(crossing_rows.tolist(), num_wanted.tolist(), strict=True)):
            while self.kv.cache.pool.num_free < wanted and self.running.requests[row] is not None:
                self._preempt(self._victims.choose(row))
            if self.running.requests[row] is None:
                continue  # it was preempted
            self._grow(growth, crossing_rows[i : i + 1], counts[i : i + 1])
        served = self.running.first_step[chunks.rows] != NEVER
        return chunks.select(served), growth._replace(is_scarce=True)

    def _grow(self, growth: _Growth, rows: IntColumn, counts: IntColumn) -> None:
        grown, block_ids = self.kv.grow(rows, counts)
        growth.rows.extend(grown)
        growth.block_ids.extend(block_ids)

    def _commit(
        self, chunks: Chunks, new_rows: list[NewRow], growth: _Growth, max_drafts: int
    ) -> SchedulerOutput:
        """Count the step's tokens as computed and put it in flight."""
        running = self.running
        rows, num_tokens, ends = chunks
        step = self._next_step
        self._next_step += 1
        running.num_computed_tokens[rows] = ends
        packed_rows = packed_sampling_rows = running.packed(rows)
        sampling_rows, positions = rows, ends
        samples = ends == running.num_tokens[rows]
        if np.count_nonzero(samples) < len(rows):
            sampling_rows, positions = rows[samples], ends[samples]
            packed_sampling_rows = pack_int32(sampling_rows)
        drafts = self.drafts.commit(chunks, sampling_rows, max_drafts) if self.drafts else NO_DRAFTS
        running.num_tokens[sampling_rows] = positions + ONE
        packed_num_tokens = self._decode_counts.pack(num_tokens)
        moves = NO_MOVES if self._offload is None else self._offload.take_moves()
        samplers = sampling_rows, packed_sampling_rows
        planned = PlannedStep(step, rows, ends, *samplers, packed_num_tokens, moves.num_moves, drafts.most)
        self.in_flight.append(planned)
        freed_rows, self._freed_rows = self._freed_rows, []
        return SchedulerOutput(
            step=step,
            rows=packed_rows,
            num_tokens=packed_num_tokens,
            new_rows=new_rows,
            freed_rows=pack_int32(freed_rows) if freed_rows else b"",
            block_rows=pack_int32(growth.rows) if growth.rows else b"",
            block_ids=pack_int32(growth.block_ids) if growth.rows else b"",
            moves_from=moves.sources,
            moves_to=moves.targets,
            last_token_ids=b"" if self._num_stages == 1 else pack_int32(running.last_tokens(rows)),
            max_drafts=max_drafts,
            drafts=drafts.told,
        )

    def _preempt(self, row: int) -> None:
        """Take a row off the batch; it resumes later from whatever is still cached of its tokens."""
        assert not self.in_flight, "a token in flight would be lost"
        self._suspend(row)

    def _suspend(self, row: int) -> Request:
        request = self._requeue(row)
        request.num_preemptions += 1
        self.num_preemptions += 1
        return request

    def _requeue(self, row: int) -> Request:
        self.running.flush_tail(row)
        request = self._leave_row(row)
        request.state = RequestState.WAITING
        self.waiting.requeue(request)
        return request

    def _leave_row(self, row: int) -> Request:
        self.kv.free(row)
        self.waiting.released(row, int(self.running.num_computed_tokens[row]))
        request = self.running.release(row)
        self.stops.unwatch(request)
        self._freed_rows.append(row)
        return request
