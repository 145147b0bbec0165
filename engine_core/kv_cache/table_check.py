"""Do the block tables of the rows, the pool and the prefix index agree?"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from splitserve.engine_core.errors import IntegrityError
from splitserve.engine_core.kv_cache.prefix_cache import PrefixCache
from splitserve.engine_core.kv_cache.window import LEFT, RowBounds

# A block that a row holds, with its index there and the number of its group.
Placed = tuple[int, tuple[int, int]]


class RowTables(NamedTuple):
    """What one row holds.

    Attributes:
        table, window_table: as KVCacheManager has them.
        num_left: in each of RowBounds.groups, how many blocks have left; empty for a free row.
        capacity: tokens that it is said to hold.
    """

    table: list[int]
    window_table: list[int]
    num_left: list[int]
    capacity: int


def check_tables(
    rows: list[RowTables], bounds: RowBounds, cache: PrefixCache, num_computed_tokens: dict[int, int]
) -> None:
    """Compare what the tables say with what pool, index and columns say.

    Args:
        rows: all of them.
        bounds: what each may hold.
        cache: pool and index.
        num_computed_tokens: of every running row.

    Raises:
        IntegrityError: names the first disagreement.
    """
    references: Counter[int] = Counter()
    placed = [_placed(tables, bounds) for tables in rows]
    for row, tables in enumerate(rows):
        references.update(_check_row(row, tables, placed[row], bounds))
        if tables.table and row not in num_computed_tokens:
            raise IntegrityError(f"row {row} is free but holds blocks {tables.table}")
    cache.check_integrity(references)
    place_of: dict[int, tuple[int, int]] = {}
    for row, num_computed in num_computed_tokens.items():
        for group, num_left in zip(bounds.groups, rows[row].num_left, strict=False):
            if num_left > bounds.num_left(group.window, num_computed):
                raise IntegrityError(f"row {row} gave back a block inside its window of {group.window}")
        for block_id, place in placed[row]:
            if references[block_id] == 1 and not cache.pool.is_cached(block_id):
                continue
            if place_of.setdefault(block_id, place) != place:
                raise IntegrityError(f"block {block_id} stands at two different indices")
            if (place[0] + 1) * bounds.block_size > num_computed:
                raise IntegrityError(f"row {row} may still write to shared or cached block {block_id}")


def _check_row(row: int, tables: RowTables, placed: list[Placed], bounds: RowBounds) -> list[int]:
    """Check a row by itself; return the blocks that it holds."""
    table, window_table, num_left, capacity = tables
    held = [block_id for block_id, _place in placed]
    if len(set(held)) != len(held) or LEFT in held:
        raise IntegrityError(f"row {row} holds a block twice, or none: {table}, {window_table}")
    for group, num_gone in zip(bounds.groups, num_left, strict=False):
        if len(table) - num_gone > group.max_blocks:
            raise IntegrityError(f"row {row} holds too many blocks in a window of {group.window}: {table}")
    if capacity != len(table) * bounds.block_size:
        raise IntegrityError(f"row {row}: capacity {capacity} with {len(table)} blocks")
    if len(window_table) != len(table) * bounds.num_window_groups:
        raise IntegrityError(f"row {row}: {len(window_table)} blocks in {bounds.num_window_groups} groups")
    return held


def _placed(tables: RowTables, bounds: RowBounds) -> list[Placed]:
    """Return each block that a row holds.

    Raises:
        IntegrityError: an entry that is said to have left is still there.
    """
    if not tables.num_left:
        return []
    width = bounds.num_window_groups
    per_group = zip(bounds.groups, tables.num_left, strict=False)
    num_left = [num_gone for group, num_gone in per_group for _ in range(group.num_groups)]
    placed: list[Placed] = []
    for group, num_gone in enumerate(num_left):
        column = tables.window_table[group - 1 :: width] if group else tables.table
        if column[:num_gone] != [LEFT] * num_gone:
            raise IntegrityError(f"group {group} still has blocks among the first {num_gone} of {column}")
        placed += [(block_id, (i, group)) for i, block_id in enumerate(column[num_gone:], num_gone)]
    return placed
