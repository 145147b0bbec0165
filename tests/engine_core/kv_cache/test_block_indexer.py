"""How far the blocks of each row are indexed, and which one a row announces."""

from __future__ import annotations

import numpy as np

from splitserve.engine_core.kv_cache.block_indexer import NEVER, BlockIndexer
from splitserve.engine_core.kv_cache.prefix_cache import PrefixCache
from splitserve.engine_core.request import Request
from tests.engine_core.requests import make_request


class Rows:
    """Rows of up to 4 blocks of 2 tokens over a cache of 16."""

    def __init__(self) -> None:
        self.cache = PrefixCache(16, b"s" * 32)
        self.tables: list[list[int]] = [[] for _ in range(3)]
        self.indexer = BlockIndexer(self.cache, self.tables, 2)

    def begin(self, row: int, request: Request) -> None:
        self.tables[row] = self.cache.allocate(4)
        self.indexer.begin(row, request, 0)

    def index(self, requests: dict[int, Request], num_computed_tokens: int) -> None:
        rows = np.array(list(requests))
        counts = np.full(len(rows), num_computed_tokens)
        self.indexer.index_full_blocks(rows, list(requests.values()), counts)


def test_a_row_announces_the_next_block_of_which_all_tokens_are_known() -> None:
    rows, request = Rows(), make_request(range(1, 6))
    rows.begin(0, request)
    follower = make_request(range(1, 8), arrival=1)
    assert rows.indexer.row_filling(follower, 0) == 0
    rows.index({0: request}, 2)
    assert rows.indexer.row_filling(follower, 0) is None
    assert rows.indexer.row_filling(follower, 1) == 0
    rows.index({0: request}, 4)
    assert len(rows.indexer.announced) == 0, "the third block has one known token only"


def test_nobody_waits_for_a_block_that_holds_its_own_last_token() -> None:
    rows = Rows()
    rows.begin(0, make_request(range(1, 6)))
    assert rows.indexer.row_filling(make_request([1, 2], arrival=1), 0) is None
    assert rows.indexer.row_filling(make_request([1, 2, 3], arrival=2), 0) == 0


def test_several_full_blocks_are_indexed_at_once() -> None:
    rows, request = Rows(), make_request(range(1, 8))
    rows.begin(1, request)
    rows.index({1: request}, 7)
    found = [rows.cache.index.lookup(block_hash) for block_hash in request.block_hashes]
    assert found == rows.tables[1][:3]
    assert rows.indexer.num_indexed(1) == 3
    assert rows.indexer.next_hash_at[1] == 8


def test_of_rows_side_by_side_the_first_ones_block_is_indexed() -> None:
    rows = Rows()
    requests = {row: make_request(range(1, 6), arrival=row) for row in (0, 2)}
    for row, request in requests.items():
        rows.begin(row, request)
    rows.index(requests, 4)
    found = [rows.cache.index.lookup(block_hash) for block_hash in requests[2].block_hashes]
    assert found == rows.tables[0][:2]
    assert rows.indexer.num_indexed(2) == 2, "its own blocks are done with, too"


def test_a_row_that_ends_announces_and_indexes_nothing() -> None:
    rows = Rows()
    rows.begin(0, make_request(range(1, 6)))
    rows.indexer.end(0)
    assert len(rows.indexer.announced) == 0
    assert rows.indexer.next_hash_at[0] == NEVER
