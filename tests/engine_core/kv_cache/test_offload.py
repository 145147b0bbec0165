from __future__ import annotations

import pytest

from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.kv_cache.costs import KVCosts, nothing_known
from splitserve.engine_core.kv_cache.offload import Offload, max_moves_per_step

NUM_BLOCKS = 10


def block_hash(number: int) -> bytes:
    return number.to_bytes(32, "little")


def make_offload(num_host_blocks: int = 4, *, max_moves: int = 100, costs: KVCosts | None = None) -> Offload:
    return Offload(NUM_BLOCKS, num_host_blocks, costs or KVCosts(nothing_known, 0, 4), max_moves)


def evict(offload: Offload, *block_ids: int) -> None:
    """Evict blocks that hold the prefixes of their own numbers."""
    offload.evicted(list(block_ids), [block_hash(block_id) for block_id in block_ids])


def taken(offload: Offload) -> list[tuple[int, int]]:
    moves = offload.take_moves()
    sources, targets = unpack_int32(moves.sources).tolist(), unpack_int32(moves.targets).tolist()
    return list(zip(sources, targets, strict=True))


def test_an_evicted_block_is_saved_and_found_at_a_place_behind_the_pool() -> None:
    offload = make_offload()
    evict(offload, 3)
    place = offload.lookup(block_hash(3))
    assert place is not None
    assert place >= NUM_BLOCKS
    assert taken(offload) == [(3, place)]
    assert taken(offload) == []
    assert offload.num_saved == 1


def test_a_loaded_block_keeps_its_slot_so_that_its_next_eviction_moves_nothing() -> None:
    offload = make_offload()
    evict(offload, 3)
    place = offload.lookup(block_hash(3))
    assert place is not None
    offload.pin([place])
    offload.load([place], [7])
    offload.evicted([7], [block_hash(3)])
    assert taken(offload) == [(3, place), (place, 7)]
    assert (offload.num_saved, offload.num_loaded) == (1, 1)


def test_what_is_about_to_be_loaded_is_not_overwritten_before_it_is_read() -> None:
    offload = make_offload(num_host_blocks=1)
    evict(offload, 3)
    place = offload.lookup(block_hash(3))
    assert place is not None
    offload.pin([place])
    evict(offload, 5)  # the block of the pool that makes room
    assert offload.lookup(block_hash(5)) is None
    offload.load([place], [5])
    evict(offload, 6)
    assert taken(offload) == [(3, place), (place, 5), (6, place)]
    offload.check_integrity()


def test_blocks_cheaper_to_compute_than_to_move_twice_are_dropped() -> None:
    # A token takes 1 ns, a block 4; of a sequence of two blocks the second token on takes 10.
    costs = KVCosts(lambda first, end: (end - first) * (1 if end <= 4 else 10), 3, 4)
    offload = make_offload(costs=costs)
    offload.released([1], 1)
    offload.released([2, 3], 2)
    evict(offload, 1, 2, 3)
    assert [source for source, _target in taken(offload)] == [2, 3]


def test_a_block_counts_as_the_longest_sequence_it_began_until_it_is_evicted() -> None:
    costs = KVCosts(lambda first, end: (end - first) * (1 if end <= 4 else 10), 3, 4)
    offload = make_offload(costs=costs)
    offload.released([1], 2)
    offload.released([1], 1)
    evict(offload, 1)
    assert len(taken(offload)) == 1
    offload.released([1], 1)
    offload.evicted([1], [block_hash(9)])
    assert taken(offload) == []


def test_of_more_saves_than_a_step_may_make_the_last_are_made() -> None:
    offload = make_offload(max_moves=2)
    evict(offload, 1, 2, 3)
    assert [source for source, _target in taken(offload)] == [2, 3]
    evict(offload, 4)
    evict(offload, 5, 6, 7)
    assert [source for source, _target in taken(offload)] == [4, 7]


def test_loads_left_are_those_of_the_step_being_planned() -> None:
    offload = make_offload(max_moves=2)
    evict(offload, 1)
    assert offload.num_loads_left() == 2
    place = offload.lookup(block_hash(1))
    assert place is not None
    offload.pin([place])
    offload.load([place], [8])
    assert offload.num_loads_left() == 1
    taken(offload)
    assert offload.num_loads_left() == 2


def test_reset_forgets_prefixes_but_makes_the_moves_that_were_planned() -> None:
    offload = make_offload()
    evict(offload, 1)
    offload.reset()
    assert offload.lookup(block_hash(1)) is None
    assert len(taken(offload)) == 1
    offload.check_integrity()


def test_an_eighth_of_the_target_bounds_the_moves_of_a_step() -> None:
    assert max_moves_per_step(0.2, 1_000_000) == 25
    assert max_moves_per_step(0.001, 1_000_000) == 1
    assert max_moves_per_step(0.0, 1_000_000) > 10**9
    assert max_moves_per_step(0.2, 0) > 10**9


def test_integrity_finds_moves_within_one_level_and_miscounted_saves() -> None:
    offload = make_offload()
    evict(offload, 1)
    offload._sources[0] = NUM_BLOCKS + 1
    with pytest.raises(IntegrityError, match="a move leads from place 11"):
        offload.check_integrity()
    offload = make_offload()
    evict(offload, 1)
    offload._num_saves = 0
    with pytest.raises(IntegrityError, match="0 saves counted among 1"):
        offload.check_integrity()
