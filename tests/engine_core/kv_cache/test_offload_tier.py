from __future__ import annotations

import pytest

from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.kv_cache.offload_tier import OffloadTier

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32


def full_tier() -> OffloadTier:
    tier = OffloadTier(2)
    tier.add(A)
    tier.add(B)
    return tier


def test_every_prefix_has_a_slot_of_its_own() -> None:
    tier = full_tier()
    assert {tier.lookup(A), tier.lookup(B)} == {0, 1}
    assert len(tier) == 2
    assert tier.lookup(C) is None
    tier.check_integrity()


def test_the_least_recently_used_prefix_is_given_up_first() -> None:
    tier = full_tier()
    assert tier.touch(A)
    slot = tier.lookup(B)
    assert tier.add(C) == slot
    assert tier.lookup(B) is None
    assert tier.lookup(A) is not None
    tier.check_integrity()


def test_touching_what_is_not_there_changes_nothing() -> None:
    tier = full_tier()
    assert not tier.touch(C)
    assert len(tier) == 2


def test_pinned_slots_are_not_given_up_until_they_are_unpinned() -> None:
    tier = full_tier()
    tier.pin([0, 1])
    assert tier.add(C) is None
    assert tier.touch(A)  # does not put it back into the order
    assert tier.add(C) is None
    tier.unpin([1, 0])
    assert tier.add(C) == 1
    tier.check_integrity()


def test_clearing_frees_every_slot() -> None:
    tier = full_tier()
    tier.clear()
    assert len(tier) == 0
    assert tier.add(C) == 0
    tier.check_integrity()


def test_integrity_finds_a_slot_that_stayed_pinned() -> None:
    tier = full_tier()
    tier.pin([1])
    with pytest.raises(IntegrityError, match=r"slots \{1\} are pinned"):
        tier.check_integrity()


def test_integrity_finds_a_slot_under_two_hashes_and_a_lost_slot() -> None:
    tier = full_tier()
    tier._slot_of[C] = 0
    with pytest.raises(IntegrityError, match="disagree"):
        tier.check_integrity()
    tier = full_tier()
    tier._free.append(1)
    with pytest.raises(IntegrityError, match="neither free nor held"):
        tier.check_integrity()
