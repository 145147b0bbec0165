"""Which blocks of the pool hold which prefixes? Allocated, shared, indexed, evicted, reported.

Pool, prefix index, CPU offload and KV events are four views of the same state. Whatever changes one of them
changes the others here:

    change      pool        index     offload                KV events
    allocate    takes       forgets   saves what is evicted  removed
    hold        shares      inserts   loads                  stored
    insert      marks       inserts   -                      stored, by report_stored
    release     gives back  -         learns its worth       -
    uncache     unmarks     forgets   -                      removed
    reset       unmarks     forgets   forgets                cleared
"""

from __future__ import annotations

from collections import Counter

from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.kept.ledger import Ledger
from splitserve.engine_core.kv_cache.block_hash import group_names
from splitserve.engine_core.kv_cache.block_pool import BlockPool
from splitserve.engine_core.kv_cache.offload import Offload
from splitserve.engine_core.kv_cache.prefix_index import PrefixIndex
from splitserve.engine_core.kv_cache.window import LEFT
from splitserve.engine_core.kv_events.recorder import KVEventRecorder
from splitserve.engine_core.request import Request


class PrefixCache:
    """The blocks of the pool and the prefixes they hold; used by the engine's thread.

    Attributes:
        pool: which blocks are free.
        index: which blocks can be found as prefixes.
        offload: the CPU offload behind the pool, None without one.
        reports_events: whether insert() has to be followed by report_stored().
        num_window_groups: see RowBounds.

    Args:
        num_blocks: of the pool.
        secret: seeds the hashes of the index.
        offload: None for none.
        kv_events: told what the pool holds; None if nobody listens.
        ledger: where a successor of this engine reads it; None for no successor.
        num_window_groups: groups whose blocks are named by group_names().
    """

    def __init__(
        self,
        num_blocks: int,
        secret: bytes,
        offload: Offload | None = None,
        kv_events: KVEventRecorder | None = None,
        ledger: Ledger | None = None,
        num_window_groups: int = 0,
    ) -> None:
        self.num_window_groups = num_window_groups
        self.pool = BlockPool(num_blocks)
        self.index = PrefixIndex(secret, ledger)
        self.offload = offload
        self.reports_events = kv_events is not None
        self._kv_events = kv_events

    def is_enough_free(self, hits: list[int], num_more: int) -> bool:
        """Whether the pool can give num_more blocks while the hits are held, those to load included."""
        shared = self._of_pool(hits)
        num_loads = len(hits) - hits.count(LEFT) - len(shared)
        num_free_hits = sum(1 for block_id in shared if self.pool.ref_counts[block_id] == 0)
        return self.pool.num_free - num_free_hits >= num_more + num_loads

    def allocate(self, count: int) -> list[int]:
        """Take blocks, evicting prefixes if need be; the caller has checked that so many are free."""
        block_ids, num_evicted = self.pool.allocate(count)
        if num_evicted:
            evicted = block_ids[count - num_evicted :]
            hashes = [self.index.forget(block_id) for block_id in evicted]
            if self.offload is not None:
                self.offload.evicted(evicted, hashes)
            if self._kv_events is not None:
                self._kv_events.removed(hashes)
        return block_ids

    def hold(self, request: Request, hits: list[int]) -> list[int]:
        """Take a reference to every hit, loading those that are offloaded.

        Args:
            request: whose prefix it is.
            hits: places of the prefix, as PrefixFinder.find() returns them; LEFT where none is needed.

        Returns:
            The block of each place, and every LEFT.
        """
        for block_id in self._of_pool(hits):
            self.pool.acquire(block_id)
        if self.offload is None or not (loads := self.offload.loads(hits)):
            return hits
        self.offload.pin(loads)
        block_ids = self.allocate(len(loads))
        self.offload.load(loads, block_ids)
        block_of = dict(zip(loads, block_ids, strict=True))
        num_blocks = len(hits) // (self.num_window_groups + 1)
        prefix = request.block_hashes[:num_blocks]
        names = prefix + group_names(prefix, self.num_window_groups)
        hashes = [names[i] for i, place in enumerate(hits) if place in block_of]
        # The step that loads them is yet to be sent.
        self.insert(hashes, block_ids, are_filled=False)
        held = [block_of.get(place, place) for place in hits]
        self.report_stored(request, 0, held[:num_blocks], set(block_ids))
        return held

    def release(self, block_ids: list[int], num_indexed: int) -> None:
        """Drop references to blocks of a sequence with so many indexed ones; the first is evicted first."""
        self.pool.release(block_ids)
        if self.offload is not None:
            self.offload.released(block_ids, num_indexed)

    def restore(self, hash_of: dict[int, bytes]) -> None:
        """Index free blocks as prefixes that a predecessor's steps have filled; nothing is in use yet."""
        self.index.restore(hash_of)
        self.pool.restore(hash_of)
        if self._kv_events is not None:
            self._kv_events.restored(hash_of.values())

    def insert(self, hashes: list[bytes], block_ids: list[int], *, are_filled: bool = True) -> list[int]:
        """Index blocks in use as prefixes; returns those now indexed, without duplicates of indexed ones.

        With `are_filled` the steps that fill them have been applied.
        """
        inserted = self.index.insert(hashes, block_ids, are_filled=are_filled)
        self.pool.mark_cached(inserted)
        return inserted

    def report_stored(
        self, request: Request, first: int, block_ids: list[int], inserted: set[int] | None = None
    ) -> None:
        """Report blocks of a request from index `first` on as cached, in consecutive runs.

        Args:
            request: has their hashes.
            first: index of the first one in the sequence.
            block_ids: consecutive blocks of the sequence.
            inserted: those of them to report; None for all.
        """
        events = self._kv_events
        if events is None:
            return
        end = first + len(block_ids)
        for block_idx, block_id in enumerate(block_ids, first):
            if inserted is not None and block_id not in inserted:
                if first < block_idx:
                    events.stored(request, first, block_idx)
                first = block_idx + 1
        if first < end:
            events.stored(request, first, end)

    def uncache(self, block_ids: list[int]) -> None:
        """Forget the prefixes that blocks in use hold, if they do; whoever shares them keeps them."""
        cached = [block_id for block_id in block_ids if self.pool.is_cached(block_id)]
        hashes = [self.index.forget(block_id) for block_id in cached]
        self.pool.uncache(cached)
        if self._kv_events is not None and hashes:
            self._kv_events.removed(hashes)

    def reset(self) -> int:
        """Forget every prefix; returns how many blocks held one. Blocks in use stay in use."""
        num_cached = len(self.index)
        self.index.reset()
        self.pool.uncache_all()
        if self.offload is not None:
            self.offload.reset()
        if self._kv_events is not None:
            self._kv_events.cleared()
        return num_cached

    def check_integrity(self, references: Counter[int]) -> None:
        """Check that pool, index, offload and the references that rows hold agree.

        Raises:
            IntegrityError: names the first disagreement.
        """
        self.pool.check_integrity(references)
        self.index.check_integrity()
        cached = {block_id for block_id in range(self.pool.num_blocks) if self.pool.is_cached(block_id)}
        if cached != self.index.block_ids():
            raise IntegrityError(f"cached marks and index differ in blocks {cached ^ self.index.block_ids()}")
        if self.offload is not None:
            self.offload.check_integrity()

    def _of_pool(self, places: list[int]) -> list[int]:
        return [place for place in places if LEFT < place < self.pool.num_blocks]
