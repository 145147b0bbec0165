"""Which blocks move between the pool and the CPU offload tier, in which order, and how many per step?

The tier is a second level of the prefix cache. A block that the pool evicts is saved here unless it is here
already or cheaper to recompute; a prefix hit on a block that is only here loads it into a block of the
pool. Loading keeps the slot, so a second eviction costs nothing. Preempted requests need no special
treatment: their full blocks are cached prefixes.

Moves are kept in one list in planning order, and workers keep that order: a slot or block may be read by one
move and overwritten by a later one, never the reverse, and all are done before the step computes. So a block
counts as holding its prefix as soon as its load is in the list.

A place names a block of the pool (0..num_blocks-1) or a slot of the tier (num_blocks + slot).
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np

from splitserve.engine_core.config import SchedulerConfig
from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.kv_cache.costs import KVCosts
from splitserve.engine_core.kv_cache.offload_tier import OffloadTier
from splitserve.engine_core.kv_events.recorder import KVEventRecorder


class Moves(NamedTuple):
    """Moves of one step, int32 columns [num_moves] as SchedulerOutput has them."""

    sources: bytes = b""
    targets: bytes = b""
    num_moves: int = 0


NO_MOVES = Moves()
# Saves, and loads while rows run, may each take an eighth of a step's target time.
PARTS_OF_TARGET = 8


def max_moves_per_step(target_itl_s: float, move_block_ns: int) -> int:
    """Return how many blocks a step may save, and load while rows run; unlimited if either argument is 0."""
    if target_itl_s <= 0 or move_block_ns == 0:
        return sys.maxsize
    return max(1, int(target_itl_s * 1e9) // PARTS_OF_TARGET // move_block_ns)


class Offload:
    """The CPU offload tier, the moves not sent with a step yet, and the worth of each block of the pool.

    Attributes:
        tier: which prefixes are in host memory.
        num_saved, num_loaded: blocks moved out and in since start.

    Args:
        num_blocks: of the pool.
        num_host_blocks: of the tier.
        costs: decides between moving and computing.
        max_moves: most saves of one step, and most loads of one while others run, at least 1.
        kv_events: told what the tier holds.
    """

    def __init__(
        self,
        num_blocks: int,
        num_host_blocks: int,
        costs: KVCosts,
        max_moves: int = sys.maxsize,
        kv_events: KVEventRecorder | None = None,
    ) -> None:
        self.tier = OffloadTier(num_host_blocks, kv_events)
        self.num_saved = 0
        self.num_loaded = 0
        self._num_blocks = num_blocks
        self._costs = costs
        self._max_moves = max_moves
        self._sources: list[int] = []
        self._targets: list[int] = []
        self._num_saves = 0
        # Per cached block of the pool: length in blocks of the longest sequence that contained it when freed.
        self._chain_blocks = np.zeros(num_blocks, np.int64)

    def lookup(self, block_hash: bytes) -> int | None:
        """Return the place of the tier that holds this prefix's last block, None when there is none."""
        slot = self.tier.lookup(block_hash)
        return None if slot is None else self._num_blocks + slot

    def holds(self, place: int) -> bool:
        """Whether a place belongs to the tier."""
        return place >= self._num_blocks

    def loads(self, places: list[int]) -> list[int]:
        """Return those places that belong to the tier."""
        return [place for place in places if place >= self._num_blocks]

    def num_loads_left(self) -> int:
        """Return how many blocks the step being planned may still load beside running rows."""
        return max(0, self._max_moves - (len(self._sources) - self._num_saves))

    def is_worth_loading(self, first_block: int, end_block: int, num_loads: int) -> bool:
        """Whether num_loads loads are cheaper than computing blocks first..end-1."""
        return self._costs.is_worth_loading(first_block, end_block, num_loads)

    def pin(self, places: list[int]) -> None:
        """Keep places of the tier until load()."""
        self.tier.pin(place - self._num_blocks for place in places)

    def load(self, places: list[int], block_ids: list[int]) -> None:
        """Load pinned places into blocks of the pool and unpin them; the last one is evicted first."""
        self._sources += places
        self._targets += block_ids
        self.num_loaded += len(places)
        self.tier.unpin(place - self._num_blocks for place in reversed(places))

    def released(self, block_ids: list[int], num_blocks: int) -> None:
        """Note that a row with num_blocks full blocks gave some of them back."""
        self._chain_blocks[block_ids] = np.maximum(self._chain_blocks[block_ids], num_blocks)

    def evicted(self, block_ids: list[int], block_hashes: list[bytes]) -> None:
        """Save those evicted blocks that are worth it; if they are too many for one step, the last ones.

        The pool evicts the end of a sequence before its beginning, and the least recently used first. So the
        blocks dropped here are those that shorter prefixes can do without.
        """
        worth = [
            (block_id, block_hash)
            for block_id, block_hash in zip(block_ids, block_hashes, strict=True)
            if not self.tier.touch(block_hash)
            and self._costs.is_worth_saving(int(self._chain_blocks[block_id]))
        ]
        self._chain_blocks[block_ids] = 0
        for block_id, block_hash in worth[max(0, len(worth) - (self._max_moves - self._num_saves)) :]:
            slot = self.tier.add(block_hash)
            if slot is None:
                break
            self._sources.append(block_id)
            self._targets.append(self._num_blocks + slot)
            self._num_saves += 1
            self.num_saved += 1

    def take_moves(self) -> Moves:
        """Return all moves since the last call, for the next step."""
        if not self._sources:
            return NO_MOVES
        moves = Moves(pack_int32(self._sources), pack_int32(self._targets), len(self._sources))
        self.drop_moves()
        return moves

    def drop_moves(self) -> None:
        """Forget the moves not sent yet: the workers that would make them are gone."""
        self._sources, self._targets, self._num_saves = [], [], 0

    def reset(self) -> None:
        """Forget every prefix; moves that were planned are still made."""
        self.tier.clear()
        self._chain_blocks[:] = 0

    def check_integrity(self) -> None:
        """Raise IntegrityError unless the tier is consistent and all moves lead between tier and pool."""
        self.tier.check_integrity()
        end = self._num_blocks + self.tier.num_slots
        for source, target in zip(self._sources, self._targets, strict=True):
            if not (0 <= source < end and 0 <= target < end) or self.holds(source) == self.holds(target):
                raise IntegrityError(f"a move leads from place {source} to {target}")
        if self._num_saves != sum(map(self.holds, self._targets)):
            raise IntegrityError(f"{self._num_saves} saves counted among {len(self._sources)} moves")


def make_offload(
    config: SchedulerConfig, costs: KVCosts, kv_events: KVEventRecorder | None
) -> Offload | None:
    """Return an engine's CPU offload tier, None if none is configured."""
    if not config.num_host_blocks:
        return None
    max_moves = max_moves_per_step(config.target_itl_s, config.move_block_ns)
    return Offload(config.num_blocks, config.num_host_blocks, costs, max_moves, kv_events)
