"""Which blocks does a row of a sliding-window model still need, and how many does it hold at most?

A token at position p sees positions p + 1 - window to p. Once a row has computed c tokens all its later
queries stand at c or behind, so a block whose last position is c - window or before is never read again: it
has left the window. The row gives it back and keeps LEFT in its table instead, so that indices go on to count
from the start of the sequence. Workers are not told, as they never read such an entry.

If layers differ in what they see, a row has two tables. The first one holds the blocks of the layers that see
most, all tokens as a rule, and keeps these. The other holds, for each block of the first, a block for each
window group, all of the same pool. These leave when they have left the window of their group.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from itertools import groupby
from typing import NamedTuple

from splitserve.engine_core.ipc.wire import ModelInfo

LEFT = -1
"""Entry in a row's table for a block that has left the window."""


class LayerWindows(NamedTuple):
    """What the groups of a model's layers attend to.

    Attributes:
        first: tokens a query sees in the layers of the first group, or in all layers; 0 if it sees all.
        others: the same of each window group, the widest first; empty if layers are alike.
    """

    first: int = 0
    others: tuple[int, ...] = ()

    @classmethod
    def of(cls, model: ModelInfo) -> LayerWindows:
        """Return those of a model as its workers describe it."""
        return cls(model.sliding_window, tuple(model.group_windows))

    def counted(self) -> list[tuple[int, int]]:
        """Return the windows of window groups, each once, with the number of groups that have it."""
        return [(window, len(list(groups))) for window, groups in groupby(self.others)]


ALL_SEE_ALL = LayerWindows()


class GroupBounds(NamedTuple):
    """What one row may take of the pool in one group, or in neighbouring window groups of one window.

    Attributes:
        window: tokens a query sees, itself included; 0 if rows keep all their blocks.
        num_groups: how many groups these are.
        max_blocks: blocks a row holds at once at most in each of them; beyond all pools if rows keep their
            blocks, 0 if there is no KV cache.
    """

    window: int
    num_groups: int
    max_blocks: int


class RowBounds(NamedTuple):
    """What one row may take of the pool; see bound_rows().

    Attributes:
        block_size: tokens per block.
        max_chunk: tokens a row computes in one step at most.
        max_cached_tokens: longest sequence that the pool can serve; 0 if it does not limit them.
        groups: of the first group, then of window groups, the widest first.
    """

    block_size: int
    max_chunk: int
    max_cached_tokens: int
    groups: tuple[GroupBounds, ...]

    @property
    def num_window_groups(self) -> int:
        """Groups behind the first; 0 if layers are alike."""
        return sum(bounds.num_groups for bounds in self.groups) - 1

    @property
    def has_cache(self) -> bool:
        """Whether rows hold blocks at all."""
        return self.groups[0].max_blocks > 0

    @property
    def has_window(self) -> bool:
        """Whether rows give blocks back while they run."""
        return any(bounds.window for bounds in self.groups)

    def max_blocks_for(self, num_tokens: int) -> int:
        """Return the most blocks a row holds at any one time while it computes num_tokens."""
        num_blocks = -(-num_tokens // self.block_size)
        return sum(bounds.num_groups * min(num_blocks, bounds.max_blocks) for bounds in self.groups)

    def blocks_decoding_at(self, num_tokens: int) -> int:
        """Return the most blocks of a row that has num_tokens and decodes one at a time."""
        num_blocks = -(-num_tokens // self.block_size)
        total = 0
        for window, num_groups, max_blocks in self.groups:
            # The window and the tokens of a few steps in flight, which may begin inside a block.
            in_window = -(-(window + 3) // self.block_size) + 1 if window else num_blocks
            total += num_groups * min(num_blocks, max_blocks, in_window)
        return total

    def num_sequences(self, num_blocks: int, num_tokens: int) -> int:
        """Return how many sequences of num_tokens such a pool holds, of which all but one decode."""
        num_others = num_blocks - self.max_blocks_for(num_tokens)
        return 0 if num_others < 0 else 1 + num_others // self.blocks_decoding_at(num_tokens)

    def num_left(self, window: int, num_computed_tokens: int) -> int:
        """Return how many blocks, from the first, no query behind num_computed_tokens sees in a window."""
        return max(0, num_computed_tokens + 1 - window) // self.block_size if window else 0

    def next_leave_at(self, window: int, num_left: int) -> int:
        """Return the num_computed_tokens at which one block more than num_left has left a window."""
        return (num_left + 1) * self.block_size + window - 1


def bound_rows(
    num_blocks: int,
    block_size: int,
    max_chunk: int,
    windows: LayerWindows = ALL_SEE_ALL,
    num_in_flight: int = 1,
) -> RowBounds:
    """Decide whether rows give back what leaves the windows, and what they hold at most then.

    Blocks are given back only after the step that filled them was applied, so that they are indexed first. So
    a row holds the chunk to plan, and before it the window or the chunks in flight, whichever is longer;
    these tokens may begin inside a block. If all layers have a window, the chunk is
    cut so that one row fits the pool: then a sequence of any length can go on alone. A pool too small for
    that with a chunk of one block keeps all blocks and limits sequences to what it holds.

    If some layers see all tokens the pool limits the length, as these keep their blocks; chunks stay whole.

    Rows of a model without a KV cache hold nothing, and compute their prompts in one chunk, which so limits
    their length.

    Args:
        num_blocks: of the pool; 0 for a model without a KV cache.
        block_size: tokens per block.
        max_chunk: tokens of one row per step by configuration.
        windows: of the layers.
        num_in_flight: steps that may be in flight when one is planned.
    """
    if num_blocks == 0:
        return RowBounds(block_size, max_chunk, max_chunk, (GroupBounds(0, 1, 0),))
    counted = [(windows.first, 1), *windows.counted()]

    def held(chunk: int) -> tuple[GroupBounds, ...]:
        """Return what a row holds in each group; the first may keep its blocks."""
        most = [
            -(-(chunk + max(window - 1, num_in_flight * chunk)) // block_size) + 1 for window, _ in counted
        ]
        return tuple(
            GroupBounds(window, num_groups, num_held if window else sys.maxsize)
            for (window, num_groups), num_held in zip(counted, most, strict=True)
        )

    def num_held(chunk: int) -> int:
        return sum(bounds.num_groups * bounds.max_blocks for bounds in held(chunk))

    if not windows.first:
        groups = held(max_chunk)
        return RowBounds(block_size, max_chunk, _longest(num_blocks, groups) * block_size, groups)
    chunk = bisect_right(range(max_chunk + 1), num_blocks, key=num_held) - 1
    if chunk < min(max_chunk, block_size):
        groups = tuple(GroupBounds(0, num_groups, sys.maxsize) for _, num_groups in counted)
        return RowBounds(block_size, max_chunk, _longest(num_blocks, groups) * block_size, groups)
    return RowBounds(block_size, chunk, 0, held(chunk))


def _longest(num_blocks: int, groups: tuple[GroupBounds, ...]) -> int:
    """Return the blocks of tokens of the longest sequence for which each group gets what it holds at most.

    Each group holds all of these blocks, or what its windows do; the narrowest are the first that do not hold
    all.
    """
    num_sharing = sum(bounds.num_groups for bounds in groups)
    longest = num_blocks // num_sharing
    for bounds in groups[:0:-1]:
        if bounds.window:
            num_blocks -= bounds.num_groups * bounds.max_blocks
            num_sharing -= bounds.num_groups
            longest = max(longest, num_blocks // num_sharing)
    return longest
