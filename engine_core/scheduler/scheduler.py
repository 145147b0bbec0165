"""What the next step computes: which rows, how many tokens of each, with which blocks.

One rule covers prefill, chunks, prefix hits, resumption and decode: every row wants its num_computed_tokens
to reach its num_tokens, and a step spends its token budget on that, running rows first, then the
queue. Planning reads counts only, never token values, so the next step can be planned while the last one
still runs.

Rows are served and preempted in one total order, (priority or 0, arrival); they are admitted in the policy's.
The first row can always go on: it is served first and never preempted for another, so every turn comes.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from splitserve.engine_core.config import SchedulerConfig, max_steps_in_flight
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, SchedulerOutput
from splitserve.engine_core.kv_cache.costs import KVCosts, RecomputeNs, nothing_known
from splitserve.engine_core.kv_cache.manager import KVCacheManager
from splitserve.engine_core.kv_cache.offload import NO_MOVES, make_offload
from splitserve.engine_core.kv_cache.window import bound_rows
from splitserve.engine_core.kv_events.recorder import KVEventRecorder
from splitserve.engine_core.request import Request, RequestState
from splitserve.engine_core.scheduler.integrity import check_integrity
from splitserve.engine_core.scheduler.microbatch import microbatch
from splitserve.engine_core.scheduler.pacing.chunks import Chunks, StepInFlight
from splitserve.engine_core.scheduler.pacing.prefill_cap import CapBeside, PrefillRoom, cap_prefill
from splitserve.engine_core.scheduler.pacing.step_budget import StepBudget
from splitserve.engine_core.scheduler.retreats import Retreats
from splitserve.engine_core.scheduler.run_ahead import RunAhead
from splitserve.engine_core.scheduler.running import NEVER, ONE, IntColumn, RunningRows
from splitserve.engine_core.scheduler.stopping import StopRules
from splitserve.engine_core.scheduler.victims import Victims
from splitserve.engine_core.scheduler.waiting.followers import Followers
from splitserve.engine_core.scheduler.waiting.policies import make_queue
from splitserve.engine_core.scheduler.waiting.queues import WaitingQueue

# A new row travels whole, cached or not: once a step carries this many tokens, further rows wait for the next
# one. Otherwise many requests over one long cached prompt would not fit the message to the worker.
MAX_NEW_ROW_TOKENS = 2**21


class _Growth(NamedTuple):
    """Blocks appended to running rows in one plan, and whether there were too few."""

    rows: list[int]
    block_ids: list[int]
    is_scarce: bool


class Scheduler:
    """Plans steps over the waiting queue, the running rows and their blocks; integers only, no clock, no I/O.

    Attributes:
        started: requests that left the queue for the first time since the engine last cleared this list.
        num_preemptions: preemptions since start.
        budget: tokens the next step may compute.
        retreats: requests that start again after a step without memory.
        run_ahead: whether short steps may be planned beyond the usual number.
        is_short_of_blocks: whether the last plan could have gone on with more blocks.
        num_queried_tokens, num_hit_tokens: prefix-cache lookups and hits since start, in tokens.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        stops: StopRules,
        secret: bytes,
        sliding_window: int = 0,
        kv_events: KVEventRecorder | None = None,
        recompute_ns: RecomputeNs = nothing_known,
    ) -> None:
        max_chunk = config.max_prefill_tokens or config.max_num_batched_tokens
        self._config = config
        self._stops = stops
        self.waiting: WaitingQueue = make_queue(config.policy, config.max_num_seqs, config.tenant_weights)
        self.running = RunningRows(config.max_num_seqs, config.block_size)
        costs = KVCosts(recompute_ns, config.move_block_ns, config.block_size)
        self.kv = KVCacheManager(
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            secret=secret,
            enable_prefix_caching=config.enable_prefix_caching,
            bounds=bound_rows(
                config.num_blocks,
                config.block_size,
                max_chunk,
                sliding_window,
                max_steps_in_flight(config.num_stages) - 1,
            ),
            kv_events=kv_events,
            offload=make_offload(config, costs, kv_events),
        )
        self.budget = StepBudget(config.max_num_batched_tokens)
        self.retreats = Retreats(self.budget, self.running)
        self._victims = Victims(config.victim, self.kv, self.running, costs)
        self._followers = Followers(self.kv, self.running)
        self.in_flight: deque[StepInFlight] = deque()
        self._max_in_flight = max_steps_in_flight(config.num_stages)
        self.run_ahead = RunAhead(self.running, self.kv.bounds.max_chunk, config.num_stages)
        self.started: list[Request] = []
        self.num_preemptions = 0
        self.is_short_of_blocks = False
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        # Admission leaves room for running rows to grow; without it a full pool admits and preempts in turns.
        self._num_spare_blocks = max(1, config.num_blocks * config.watermark_percent // 100)
        self._max_chunk = self.kv.bounds.max_chunk
        self._next_step = 1
        self._freed_rows: list[int] = []

    def add(self, request: Request) -> None:
        """Queue a new request; the engine has checked it and the queue's bound."""
        self.waiting.add(request)

    def remove(self, request: Request) -> None:
        """Take a request out wherever it stands: finished, aborted, failed or timed out."""
        if request.state is RequestState.WAITING:
            self.waiting.remove(request)
        elif request.state is RequestState.RUNNING:
            self._leave_row(request.row)
        request.state = RequestState.ENDED

    def retreat(self, rows: list[int], num_tokens: int) -> list[Request]:
        """Take rows off the batch whose step of num_tokens tokens ran out of memory; they enter again later.

        Nothing is lost that a step in flight still computes: the worker leaves these rows alone by now.

        Returns:
            The requests of which this has happened too often; they wait, and have to be removed.
        """
        return self.retreats.take_back([self._suspend(row) for row in rows], num_tokens)

    def schedule(self, cap_beside: CapBeside | None = None) -> SchedulerOutput | None:
        """Plan the next step; None when nothing can run until a step is applied or a request arrives.

        Args:
            cap_beside: tells the cap that holds beside so many decoding rows, at least 1; asked only when the
                step could prefill. None for no cap beside the budget.
        """
        if len(self.in_flight) >= self._max_in_flight and not (
            self._is_closed and self.run_ahead.has_room(self.in_flight)
        ):
            return None
        chunks, room = self._wanted(cap_beside)
        if self.kv.bounds.window:
            running = self.running.order
            self.kv.leave_window(running, self.running.num_computed_tokens[running])
        chunks, growth = self._give_blocks(chunks)
        self.is_short_of_blocks = growth.is_scarce
        new_rows: list[NewRow] = []
        if len(self.waiting) and not growth.is_scarce:
            chunks, new_rows = self._admit(chunks, room)
        if len(chunks.rows) == 0:
            return None
        return self._commit(chunks, new_rows, growth)

    def reset_prefix_cache(self) -> int:
        """Forget all cached prefixes, for waiting requests too; returns how many blocks held one."""
        num_dropped = self.kv.reset_prefix_cache()
        for request in self.waiting:
            request.leader = None
            request.block_hashes.clear()
            request.namespace = self.kv.index.namespace(request.tenant, request.cache_salt)
        return num_dropped

    def check_integrity(self) -> None:
        """Raise IntegrityError unless queue, rows, blocks and steps in flight agree."""
        check_integrity(self.waiting, self.running, self.kv, self.in_flight)

    def _wanted(self, cap_beside: CapBeside | None) -> tuple[Chunks, PrefillRoom | None]:
        """Return what the running rows compute if blocks suffice, and what is left of a cap."""
        running = self.running
        rows = microbatch(running, self._config.num_stages)
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
            # Decoding rows keep their token as far as the budget allows: prefill leaves them room.
            room = PrefillRoom(cap_beside(num_decoding), max(1, budget - num_decoding))
        if everyone_decodes:
            return Chunks(rows, num_tokens, contexts + num_tokens), room
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

    def _give_blocks(self, chunks: Chunks) -> tuple[Chunks, _Growth]:
        """Allocate the blocks that rows grow into, preempting others if need be.

        A victim stands behind the row that needs its blocks, so it has not been served yet and nothing has to
        be taken back. With a step in flight nobody is preempted: its output may free blocks, and a victim's
        token that is still being sampled would be lost work. Nothing is planned then, so that it ends soon.
        """
        growth = _Growth([], [], False)
        capacity = self.kv.capacity[chunks.rows]
        crossing = (chunks.ends > capacity).nonzero()[0]
        if len(crossing) == 0:
            return chunks, growth
        crossing_rows = chunks.rows[crossing]
        num_missing = chunks.ends[crossing] - capacity[crossing]
        counts = -(-num_missing // self._config.block_size)
        if int(counts.sum()) <= self.kv.pool.num_free:
            self._grow(growth, crossing_rows, counts)
            return chunks, growth
        if self.in_flight:
            return chunks.select(slice(0)), growth._replace(is_scarce=True)
        for i, (row, count) in enumerate(zip(crossing_rows.tolist(), counts.tolist(), strict=True)):
            while self.kv.pool.num_free < count and self.running.requests[row] is not None:
                self._preempt(self._victims.choose(row))
            if self.running.requests[row] is None:
                continue  # it gave way
            self._grow(growth, crossing_rows[i : i + 1], counts[i : i + 1])
        served = self.running.first_step[chunks.rows] != NEVER
        return chunks.select(served), growth._replace(is_scarce=True)

    def _grow(self, growth: _Growth, rows: IntColumn, counts: IntColumn) -> None:
        grown, block_ids = self.kv.grow(rows, counts)
        growth.rows.extend(grown)
        growth.block_ids.extend(block_ids)

    def _admit(self, chunks: Chunks, room: PrefillRoom | None) -> tuple[Chunks, list[NewRow]]:
        """Admit from the head of the queue while rows, blocks, tokens and the message to the worker last.

        A head that follows a running row is passed over, but a row and the blocks of its whole sequence are
        kept for it, so that whoever passes takes nothing away from it.
        """
        new_rows: list[NewRow] = []
        new_tokens: list[int] = []
        budget = self.budget.num_tokens - int(chunks.num_tokens.sum())
        num_held = num_kept_blocks = 0
        num_sendable = MAX_NEW_ROW_TOKENS
        if self.running.num_free_rows:
            self.waiting.settle(self.running)
        while min(budget, num_sendable) > 0 and self.running.num_free_rows > num_held:
            if room is not None and not room.is_open:
                break
            request = self.waiting.head()
            if request is None:
                break
            if self._followers.is_held(request):
                num_held += 1
                num_kept_blocks += self.kv.max_blocks_for(request.num_stored_tokens)
                self.waiting.set_aside(request)
                continue
            # Alone it may take the whole pool, which holds any accepted request, and load all at once.
            num_spare = self._num_spare_blocks + num_kept_blocks if len(self.running) else 0
            if len(self.running) and self.kv.load_ahead(request, num_spare):
                break
            new_row = self._admit_one(request, num_spare)
            if new_row is None:
                self.is_short_of_blocks = True
                break
            uncomputed = request.num_stored_tokens - new_row.num_computed_tokens
            chunk = min(uncomputed, self._max_chunk, budget)
            new_tokens.append(chunk if room is None else room.take(chunk, new_row.num_computed_tokens))
            budget -= new_tokens[-1]
            num_sendable -= request.num_stored_tokens
            new_rows.append(new_row)
        if num_held:
            self.waiting.restore()
        if new_rows:
            rows = np.array([new_row.row for new_row in new_rows], np.int64)
            num_tokens = np.array(new_tokens, np.int64)
            added = Chunks(rows, num_tokens, self.running.num_computed_tokens[rows] + num_tokens)
            chunks = added.behind(chunks)
        return chunks, new_rows

    def _admit_one(self, request: Request, num_spare: int) -> NewRow | None:
        running = self.running
        row = running.lowest_free_row()
        num_cached = self.kv.admit(row, request, num_spare)
        if num_cached is None:
            assert len(running), "an accepted request fits the empty pool"
            return None
        self.waiting.remove(request)
        self.waiting.admitted(request, row, num_cached)
        running.admit(row, request, step=self._next_step, num_cached_tokens=num_cached)
        self._stops.watch(request)
        if self._config.enable_prefix_caching and not request.wants_prompt_logprobs:
            self.num_queried_tokens += request.num_stored_tokens
            self.num_hit_tokens += num_cached
        if not request.was_started:
            request.was_started = True
            request.num_cached_tokens = min(num_cached, request.num_prompt_tokens)
            self.started.append(request)
        num_left = self.kv.num_left(row)
        return NewRow(
            row=row,
            token_ids=bytes(request.token_ids),
            num_prompt_tokens=request.num_prompt_tokens,
            num_computed_tokens=num_cached,
            block_ids=pack_int32(self.kv.tables[row][num_left:]),
            sampling=request.sampling_for_worker(),
            first_block=num_left,
        )

    def _commit(self, chunks: Chunks, new_rows: list[NewRow], growth: _Growth) -> SchedulerOutput:
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
        running.num_tokens[sampling_rows] = positions + ONE
        packed_num_tokens = pack_int32(num_tokens)
        self.in_flight.append(
            StepInFlight(step, rows, ends, sampling_rows, packed_sampling_rows, packed_num_tokens)
        )
        freed_rows, self._freed_rows = self._freed_rows, []
        moves = NO_MOVES if self.kv.offload is None else self.kv.offload.take_moves()
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
            last_token_ids=b"" if self._config.num_stages == 1 else pack_int32(running.last_tokens(rows)),
        )

    def _preempt(self, row: int) -> None:
        """Take a row off the batch; it goes on later from what is cached of its tokens by then."""
        assert not self.in_flight, "a token in flight would be lost"
        self._suspend(row)

    def _suspend(self, row: int) -> Request:
        self.running.flush_tail(row)
        request = self._leave_row(row)
        request.state = RequestState.WAITING
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.requeue(request)
        return request

    def _leave_row(self, row: int) -> Request:
        self.kv.free(row)
        self.waiting.released(row, int(self.running.num_computed_tokens[row]))
        request = self.running.release(row)
        self._stops.unwatch(request)
        self._freed_rows.append(row)
        return request
