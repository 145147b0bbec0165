"""Which blocks does a row of a sliding-window model still need, and how many does it hold at most?

A token at position p sees positions p + 1 - window to p. Once a row has computed c tokens all its later
queries stand at c or behind, so a block whose last position is c - window or before is never read again: it
has left the window. The row gives it back and keeps LEFT in its table instead, so that indices go on to count
from the start of the sequence. Workers are not told, as they never read such an entry.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

LEFT = -1
"""Entry in a row's table for a block that has left the window."""


class RowBounds(NamedTuple):
    """What one row may take of the pool; see bound_rows().

    Attributes:
        window: tokens a query sees, itself included; 0 if rows keep all their blocks.
        block_size: tokens per block.
        max_chunk: tokens a row computes in one step at most.
        max_blocks: blocks a row holds at once at most; beyond all pools if rows keep all their blocks, 0 if
            there is no KV cache.
        max_cached_tokens: longest sequence that the pool can serve; 0 if it does not limit them.
    """

    window: int
    block_size: int
    max_chunk: int
    max_blocks: int
    max_cached_tokens: int

    def num_left(self, num_computed_tokens: int) -> int:
        """Return how many blocks, from the first, no query behind num_computed_tokens sees."""
        return max(0, num_computed_tokens + 1 - self.window) // self.block_size

    def next_leave_at(self, num_left: int) -> int:
        """Return the num_computed_tokens at which one block more than num_left has left."""
        return (num_left + 1) * self.block_size + self.window - 1


def bound_rows(
    num_blocks: int, block_size: int, max_chunk: int, sliding_window: int, num_in_flight: int = 1
) -> RowBounds:
    """Decide whether rows give back what leaves the window, and what they hold at most then.

    Blocks are given back only after the step that filled them was applied, so that they are indexed first. So
    a row holds the chunk to plan, and before it the window or the chunks in flight, whichever is longer;
    these tokens may begin inside a block. The chunk is
    cut so that one row fits the pool: then a sequence of any length can go on alone. A pool too small for
    that with a chunk of one block keeps all blocks and limits sequences to what it holds.

    Rows of a model without a KV cache hold nothing, and compute their prompts in one chunk, which so limits
    their length.

    Args:
        num_blocks: of the pool; 0 for a model without a KV cache.
        block_size: tokens per block.
        max_chunk: tokens of one row per step by configuration.
        sliding_window: of all layers; 0 if there is none or layers differ.
        num_in_flight: steps that may be in flight when one is planned.
    """
    if num_blocks == 0:
        return RowBounds(0, block_size, max_chunk, 0, max_chunk)
    num_tokens = (num_blocks - 1) * block_size
    chunk = min(max_chunk, num_tokens - (sliding_window - 1), num_tokens // (num_in_flight + 1))
    if sliding_window == 0 or chunk < min(max_chunk, block_size):
        return RowBounds(0, block_size, max_chunk, sys.maxsize, num_blocks * block_size)
    max_tokens = chunk + max(sliding_window - 1, num_in_flight * chunk)
    return RowBounds(sliding_window, block_size, chunk, -(-max_tokens // block_size) + 1, 0)
