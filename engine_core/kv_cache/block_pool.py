"""Which KV blocks are in use, by how many rows, and in which order are free ones handed out?

States of a block:

    state        ref count  cached  left by
    plain free   0          no      allocate
    cached free  0          yes     acquire (prefix hit), allocate (evicted), uncache_all
    used         > 0        either  release of the last reference

Free blocks without a cached prefix go first; among cached ones the least recently freed goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from splitserve.engine_core.errors import IntegrityError


class Allocation(NamedTuple):
    """Blocks handed out with ref count 1; the last num_evicted of them held cached prefixes until now."""

    block_ids: list[int]
    num_evicted: int


class BlockPool:
    """Ref-counted blocks 0..num_blocks-1 and the two free lists."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.ref_counts = [0] * num_blocks
        self._is_cached = bytearray(num_blocks)
        # Plain free blocks are only ever taken from one end, so a stack does; the lowest ids come off first.
        self._plain = list(range(num_blocks - 1, -1, -1))
        # A prefix hit takes a block out of the middle. A deque needs O(n) for that; a dict leaves a hole
        # per eviction that the next "oldest" search must step over; OrderedDict is a linked list with O(1)
        # for both.
        self._lru: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that allocate() can hand out, cached ones included."""
        return len(self._plain) + len(self._lru)

    @property
    def num_idle_cached(self) -> int:
        """Free blocks that hold a cached prefix."""
        return len(self._lru)

    def cached_flags(self, stride: int) -> bytes:
        """Return 1 for every stride-th block that holds an indexed prefix, 0 for the others; uint8 column."""
        return bytes(self._is_cached[::stride])

    def allocate(self, count: int) -> Allocation:
        """Hand out `count` blocks; the caller has checked num_free and forgets the evicted prefixes."""
        assert count <= self.num_free, "the caller must check num_free"
        num_plain = min(count, len(self._plain))
        split = len(self._plain) - num_plain
        block_ids = self._plain[split:][::-1]
        del self._plain[split:]
        for _ in range(count - num_plain):
            block_id, _none = self._lru.popitem(last=False)
            self._is_cached[block_id] = 0
            block_ids.append(block_id)
        for block_id in block_ids:
            self.ref_counts[block_id] = 1
        return Allocation(block_ids, count - num_plain)

    def acquire(self, block_id: int) -> None:
        """Add one reference to a cached block, taking it off the free list when it had none."""
        assert self._is_cached[block_id], "only cached blocks are shared"
        if self.ref_counts[block_id] == 0:
            del self._lru[block_id]
        self.ref_counts[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """Drop one reference of each block, in this order; the first ones become the first to be evicted."""
        for block_id in block_ids:
            self.ref_counts[block_id] -= 1
            if self.ref_counts[block_id] > 0:
                continue
            assert self.ref_counts[block_id] == 0, "released more often than acquired"
            if self._is_cached[block_id]:
                self._lru[block_id] = None
            else:
                self._plain.append(block_id)

    def restore(self, block_ids: Iterable[int]) -> None:
        """Note that free blocks hold indexed prefixes; the first becomes the first to be evicted."""
        self._lru.update(dict.fromkeys(block_ids))
        for block_id in self._lru:
            assert self.ref_counts[block_id] == 0, "restored before anything is used"
            self._is_cached[block_id] = 1
        self._plain = [block_id for block_id in self._plain if block_id not in self._lru]

    def mark_cached(self, block_ids: Iterable[int]) -> None:
        """Note that used blocks hold an indexed prefix."""
        for block_id in block_ids:
            assert self.ref_counts[block_id] > 0, "a free block cannot become cached"
            self._is_cached[block_id] = 1

    def uncache(self, block_ids: Iterable[int]) -> None:
        """Note that used blocks that hold an indexed prefix are to be found no more."""
        for block_id in block_ids:
            assert self.ref_counts[block_id] > 0, "free blocks are evicted"
            self._is_cached[block_id] = 0

    def uncache_all(self) -> None:
        """Turn every cached block into a plain one."""
        self._plain.extend(self._lru)
        self._lru.clear()
        self._is_cached = bytearray(self.num_blocks)

    def is_cached(self, block_id: int) -> bool:
        """Whether the block holds an indexed prefix."""
        return bool(self._is_cached[block_id])

    def check_integrity(self, references: dict[int, int]) -> None:
        """Compare with the references that row tables really hold.

        Args:
            references: block id to number of tables it stands in; absent means none.

        Raises:
            IntegrityError: names the first block or count that is wrong.
        """
        for block_id, count in enumerate(self.ref_counts):
            if count != references.get(block_id, 0):
                raise IntegrityError(
                    f"block {block_id}: ref count {count}, stands in {references.get(block_id, 0)} tables"
                )
        free = [*self._plain, *self._lru]
        if len(set(free)) != len(free):
            raise IntegrityError("a block is on the free lists twice")
        if any(self.ref_counts[block_id] for block_id in free):
            raise IntegrityError("a block on a free list is in use")
        num_used = sum(1 for count in self.ref_counts if count)
        if num_used + len(free) != self.num_blocks:
            raise IntegrityError(f"{num_used} used and {len(free)} free blocks of {self.num_blocks}")
        if any(self._is_cached[block_id] for block_id in self._plain):
            raise IntegrityError("a cached block is on the plain free list")
        if not all(self._is_cached[block_id] for block_id in self._lru):
            raise IntegrityError("a plain block is on the cached free list")
