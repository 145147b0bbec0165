"""A successor reads exactly what counted when the engine died, and nothing of another KV cache."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from splitserve.engine_core.kept.ledger import HeldPrefixes, Ledger
from splitserve.engine_core.kept.processes import ProcessName, name_process

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memfds")
SECRET = b"s" * 32
HASHES = [bytes([n]) * 32 for n in range(8)]


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """The engine's, begun for 8 blocks of 16 tokens."""
    made = Ledger.create()
    assert made.open(8, 16) is None
    made.begin(SECRET)
    yield made
    made.close()
    made.close()


def reopened(ledger: Ledger, num_blocks: int = 8, block_size: int = 16) -> HeldPrefixes | None:
    """What a successor reads."""
    other = Ledger.of_worker(name_process(os.getpid()), ledger.descriptor)
    assert other is not None
    held = other.open(num_blocks, block_size)
    other.close()
    return held


def test_what_counts_is_read_with_its_secret(ledger: Ledger) -> None:
    for block_id in (0, 3, 7, 5):
        ledger.enter({block_id: HASHES[block_id]})
    ledger.forget(5)
    ledger.forget(6)
    assert reopened(ledger) == HeldPrefixes(SECRET, {0: HASHES[0], 3: HASHES[3], 7: HASHES[7]})


def test_blocks_of_window_groups_keep_their_numbers(ledger: Ledger) -> None:
    names = {0: b"a" * 32, 1: b"a" * 32 + b"\x01", 2: b"a" * 32 + b"\x02"}
    ledger.enter(names)
    assert reopened(ledger) == HeldPrefixes(SECRET, names)


def test_a_block_never_counts_with_half_a_hash(ledger: Ledger) -> None:
    ledger.enter({2: HASHES[2]})
    ledger.forget(2)
    assert ledger._map is not None
    # Killed while it wrote the next hash.
    at = ledger._hashes_at + 2 * 32
    ledger._map[at : at + 16] = HASHES[4][:16]
    assert reopened(ledger) == HeldPrefixes(SECRET, {})


@pytest.mark.parametrize("size", [(9, 16), (8, 32), (7, 16)])
def test_another_kv_cache_is_not_described(ledger: Ledger, size: tuple[int, int]) -> None:
    ledger.enter({1: HASHES[1]})
    assert reopened(ledger, *size) is None


def test_a_ledger_that_was_not_begun_says_nothing() -> None:
    made = Ledger.create()
    assert reopened(made) is None
    made.close()


def test_a_beginning_that_was_cut_short_says_nothing(ledger: Ledger) -> None:
    ledger.enter({1: HASHES[1]})
    assert ledger._map is not None
    ledger._map[:8] = bytes(8)
    assert reopened(ledger) is None
    ledger.begin(SECRET)
    assert reopened(ledger) == HeldPrefixes(SECRET, {})


def test_new_workers_hold_nothing_under_the_same_secret(ledger: Ledger) -> None:
    ledger.enter({1: HASHES[1]})
    ledger.clear()
    assert reopened(ledger) == HeldPrefixes(SECRET, {})


def test_another_edition_says_nothing(ledger: Ledger) -> None:
    assert ledger._map is not None
    ledger._map[7:8] = b"2"
    assert reopened(ledger) is None


def test_no_two_blocks_are_read_for_one_prefix(ledger: Ledger) -> None:
    ledger.enter({1: HASHES[1]})
    ledger.enter({4: HASHES[1]})
    assert reopened(ledger) == HeldPrefixes(SECRET, {1: HASHES[1]})
    ledger.enter({1: HASHES[2]})
    assert reopened(ledger) == HeldPrefixes(SECRET, {1: HASHES[2]}), "the other counts no more"


def test_a_descriptor_of_something_else_is_no_ledger() -> None:
    reading, writing = os.pipe()
    try:
        assert Ledger.of_worker(name_process(os.getpid()), reading) is None
        assert Ledger.of_worker(ProcessName(2**22 + 1), reading) is None
        assert Ledger.of_worker(name_process(os.getpid()), -1) is None
    finally:
        os.close(reading)
        os.close(writing)
