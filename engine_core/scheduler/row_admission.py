"""Which waiting requests get a row in the next step? Those at the head of the queue, while resources last.

A head that follows a running row (engine_core.scheduler.waiting.followers) is passed over, but a row and the
blocks of its whole sequence are reserved for it, so that requests admitted before it take nothing from it.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

import numpy as np

from splitserve.engine_core.adapter import Adapter
from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import NO_ADAPTER, NewRow
from splitserve.engine_core.kv_cache.manager import KVCacheManager
from splitserve.engine_core.request import Request, Siblings
from splitserve.engine_core.scheduler.pacing.chunks import Chunks
from splitserve.engine_core.scheduler.pacing.prefill_cap import PrefillRoom
from splitserve.engine_core.scheduler.running import RunningRows
from splitserve.engine_core.scheduler.stopping import StopRules
from splitserve.engine_core.scheduler.waiting.followers import Followers
from splitserve.engine_core.scheduler.waiting.queues import WaitingQueue

# A new row sends all its tokens, cached or not: once a step carries this many, further rows wait for the next
# step. Otherwise many requests with the same long cached prompt would not fit the message to the worker.
MAX_NEW_ROW_TOKENS = 2**21
# Of a namespace, as much as nobody meets by chance.
_NAMESPACE_BYTES = 16


class Admitted(NamedTuple):
    """What was admitted to one step.

    Attributes:
        chunks: of the step, those of the new rows last.
        new_rows: as sent to the worker.
        is_short_of_blocks: whether the next request in the queue waits for blocks.
    """

    chunks: Chunks
    new_rows: list[NewRow]
    is_short_of_blocks: bool


class RowAdmission:
    """Moves requests from the queue to free rows; part of the scheduler.

    Attributes:
        started: requests that left the queue for the first time since the engine last cleared this list.
        suspects: requests that have to wait until they are tried, see engine_core.engine.quarantine.
        uncompiled: grammars whose requests have to wait, see engine_core.engine.grammars.
        wanted_adapters: filled with adapters whose requests have to wait, see engine_core.engine.adapters.
        num_queried_tokens, num_hit_tokens: prefix-cache lookups and hits since start, in tokens.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        waiting: WaitingQueue,
        running: RunningRows,
        kv: KVCacheManager,
        stops: StopRules,
    ) -> None:
        self._waiting = waiting
        self._running = running
        self._kv = kv
        self._stops = stops
        self._followers = Followers(kv, running)
        self._enable_prefix_caching = config.enable_prefix_caching
        # Leaves room for running rows to grow; without it a full pool would admit and preempt in alternation.
        num_spare = max(1, config.num_blocks * config.watermark_percent // 100)
        self._num_spare_blocks = min(config.num_blocks, num_spare)
        # Without a KV cache there is nothing that a later step could go on from.
        self._takes_whole_prompts = config.num_blocks == 0
        self._namespace_bytes = _NAMESPACE_BYTES if config.num_speculative_tokens else 0
        self.started: list[Request] = []
        self.suspects: Set[Siblings] = frozenset()
        self.uncompiled: Set[str | None] = frozenset()
        self.wanted_adapters: dict[Adapter, None] = {}
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0

    def admit(self, chunks: Chunks, room: PrefillRoom | None, num_tokens: int, step: int) -> Admitted:
        """Admit as long as rows, blocks, tokens and the message to the worker allow.

        Args:
            chunks: of the rows already running.
            room: what is left of a cap on prefill; None without one.
            num_tokens: budget of the whole step.
            step: its number.
        """
        new_rows: list[NewRow] = []
        new_tokens: list[int] = []
        budget = num_tokens - int(chunks.num_tokens.sum())
        num_aside = num_held = num_kept_blocks = 0
        num_sendable = MAX_NEW_ROW_TOKENS
        is_short_of_blocks = False
        if self._running.num_free_rows:
            self._waiting.settle(self._running)
        while min(budget, num_sendable) > 0 and self._running.num_free_rows > num_held:
            if room is not None and not room.is_open:
                break
            request = self._waiting.head()
            if request is None:
                break
            must_wait = (
                request.siblings in self.suspects
                or request.sampling.grammar in self.uncompiled
                or self._lacks_adapter(request)
            )
            if must_wait or self._followers.is_held(request):
                self._waiting.set_aside(request)
                num_aside += 1
                if not must_wait:
                    num_held += 1
                    num_kept_blocks += self._kv.bounds.max_blocks_for(request.num_stored_tokens)
                continue
            # Alone it is computed even if it exceeds the budget: that has shrunk then, for lack of memory.
            is_alone = budget == num_tokens
            if self._takes_whole_prompts and request.num_stored_tokens > budget and not is_alone:
                break
            # A lone request may take the whole pool, which fits any accepted one, and load all at once.
            num_spare = self._num_spare_blocks + num_kept_blocks if len(self._running) else 0
            if len(self._running) and self._kv.load_ahead(request, num_spare):
                break
            new_row = self._admit_one(request, num_spare, step)
            if new_row is None:
                is_short_of_blocks = True
                break
            uncomputed = request.num_stored_tokens - new_row.num_computed_tokens
            chunk = uncomputed
            if not self._takes_whole_prompts:
                chunk = min(uncomputed, self._kv.bounds.max_chunk, budget)
            new_tokens.append(chunk if room is None else room.take(chunk, new_row.num_computed_tokens))
            budget -= new_tokens[-1]
            num_sendable -= request.num_stored_tokens
            new_rows.append(new_row)
        if num_aside:
            self._waiting.restore()
        if new_rows:
            chunks = self._chunks_of(new_rows, new_tokens).behind(chunks)
        return Admitted(chunks, new_rows, is_short_of_blocks)

    def _lacks_adapter(self, request: Request) -> bool:
        """Whether a request has to wait for its adapter, which is wanted then unless it is being loaded."""
        adapter = request.adapter
        if adapter is None or adapter.takes_rows:
            return False
        if adapter.is_leaving or adapter.slot == NO_ADAPTER:
            self.wanted_adapters[adapter] = None
        return True

    def _admit_one(self, request: Request, num_spare_blocks: int, step: int) -> NewRow | None:
        """Give a request the lowest free row; None when the blocks do not suffice."""
        row = self._running.lowest_free_row()
        num_cached = self._kv.admit(row, request, num_spare_blocks)
        if num_cached is None:
            assert len(self._running), "an accepted request fits the empty pool"
            return None
        self._waiting.remove(request)
        self._waiting.admitted(request, row, num_cached)
        self._running.admit(row, request, step=step, num_cached_tokens=num_cached)
        self._stops.watch(request)
        self._count(request, num_cached)
        first_block = self._kv.first_block(row)
        in_windows = self._kv.in_windows(row)
        adapter = request.adapter
        if adapter is not None:
            adapter.last_used = step
        return NewRow(
            row=row,
            token_ids=bytes(request.token_ids),
            num_prompt_tokens=request.num_prompt_tokens,
            num_computed_tokens=num_cached,
            block_ids=pack_int32(self._kv.tables[row][first_block:]),
            sampling=request.sampling_for_worker(),
            first_block=first_block,
            second_at=request.second_at,
            pools_tokens=request.pools_tokens,
            max_num_computed_tokens=int(self._running.max_num_computed_tokens[row]),
            adapter=NO_ADAPTER if adapter is None else adapter.slot,
            predicted_token_ids=request.predicted,
            window_block_ids=pack_int32(in_windows) if in_windows else b"",
            first_window_block=self._kv.first_window_block(row),
            namespace=request.namespace[: self._namespace_bytes],
        )

    def _count(self, request: Request, num_cached: int) -> None:
        if self._enable_prefix_caching and not request.needs_all_tokens:
            self.num_queried_tokens += request.num_stored_tokens
            self.num_hit_tokens += num_cached
        if not request.was_started:
            request.was_started = True
            request.num_cached_tokens = min(num_cached, request.num_prompt_tokens)
            self.started.append(request)

    def _chunks_of(self, new_rows: list[NewRow], new_tokens: list[int]) -> Chunks:
        rows = np.array([new_row.row for new_row in new_rows], np.int64)
        num_tokens = np.array(new_tokens, np.int64)
        return Chunks(rows, num_tokens, self._running.num_computed_tokens[rows] + num_tokens)
