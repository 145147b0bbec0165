"""Which blocks does a row of a sliding-window model still need, and how many does it hold at most?

A token at position p sees positions p + 1 - window to p. Once a row has computed c tokens all its later
queries stand at c or behind, so a block whose last position is c - window or before is never read again: it
has left the window. The row gives it back and keeps LEFT in its table instead, so that indices go on to count
from the start of the sequence. Workers are not told, as they never read such an entry.

If some layers see all tokens and others have a window, a row has two tables. The first one holds the blocks
of the layers that see all tokens, and keeps them. The other holds, for each block of the first, a block for
each group of layers with a window, all of the same pool; only these leave.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from splitserve.engine_core.ipc.wire import ModelInfo

LEFT = -1
"""Entry in a row's table for a block that has left the window."""


class LayerWindows(NamedTuple):
    """What the layers of a model attend to.

    Attributes:
        window: tokens a query sees in all layers, or in those of the window groups; 0 if it sees all tokens.
        num_groups: window groups beside the layers that see all tokens; 0 if layers are alike.
    """

    window: int = 0
    num_groups: int = 0

    @classmethod
    def of(cls, model: ModelInfo) -> LayerWindows:
        """Return those of a model as its workers describe it."""
        return (
            cls(model.group_window, model.num_window_groups)
            if model.num_window_groups
            else cls(model.sliding_window)
        )


ALL_SEE_ALL = LayerWindows()


class RowBounds(NamedTuple):
    """What one row may take of the pool; see bound_rows().

    Attributes:
        window: tokens a query sees, itself included, in the layers whose blocks leave; 0 if rows keep all
            their blocks.
        block_size: tokens per block.
        max_chunk: tokens a row computes in one step at most.
        max_blocks: blocks a row holds at once at most, in each group of layers whose blocks leave; beyond all
            pools if rows keep all their blocks, 0 if there is no KV cache.
        max_cached_tokens: longest sequence that the pool can serve; 0 if it does not limit them.
        num_window_groups: groups of layers with the window, if others see all tokens; 0 if layers are alike.
    """

    window: int
    block_size: int
    max_chunk: int
    max_blocks: int
    max_cached_tokens: int
    num_window_groups: int = 0

    def max_blocks_for(self, num_tokens: int) -> int:
        """Return the most blocks a row holds at any one time while it computes num_tokens."""
        num_blocks = -(-num_tokens // self.block_size)
        num_held = min(num_blocks, self.max_blocks)
        return num_blocks + self.num_window_groups * num_held if self.num_window_groups else num_held

    def blocks_decoding_at(self, num_tokens: int) -> int:
        """Return the most blocks of a row that has num_tokens and decodes one at a time."""
        if not self.window:
            return self.max_blocks_for(num_tokens)
        # The window and the tokens of a few steps in flight, which may begin inside a block.
        in_window = -(-(self.window + 3) // self.block_size) + 1
        return self._replace(max_blocks=min(self.max_blocks, in_window)).max_blocks_for(num_tokens)

    def num_sequences(self, num_blocks: int, num_tokens: int) -> int:
        """Return how many sequences of num_tokens such a pool holds, of which all but one decode."""
        num_others = num_blocks - self.max_blocks_for(num_tokens)
        return 0 if num_others < 0 else 1 + num_others // self.blocks_decoding_at(num_tokens)

    def num_left(self, num_computed_tokens: int) -> int:
        """Return how many blocks, from the first, no query behind num_computed_tokens sees."""
        return max(0, num_computed_tokens + 1 - self.window) // self.block_size

    def next_leave_at(self, num_left: int) -> int:
        """Return the num_computed_tokens at which one block more than num_left has left."""
        return (num_left + 1) * self.block_size + self.window - 1


def bound_rows(
    num_blocks: int,
    block_size: int,
    max_chunk: int,
    sliding_window: int,
    num_in_flight: int = 1,
    num_window_groups: int = 0,
) -> RowBounds:
    """Decide whether rows give back what leaves the window, and what they hold at most then.

    Blocks are given back only after the step that filled them was applied, so that they are indexed first. So
    a row holds the chunk to plan, and before it the window or the chunks in flight, whichever is longer;
    these tokens may begin inside a block. The chunk is
    cut so that one row fits the pool: then a sequence of any length can go on alone. A pool too small for
    that with a chunk of one block keeps all blocks and limits sequences to what it holds.

    With window groups the pool limits the length, as the other layers keep their blocks; chunks stay whole.

    Rows of a model without a KV cache hold nothing, and compute their prompts in one chunk, which so limits
    their length.

    Args:
        num_blocks: of the pool; 0 for a model without a KV cache.
        block_size: tokens per block.
        max_chunk: tokens of one row per step by configuration.
        sliding_window: of all layers, or of those in window groups; 0 if there is none.
        num_in_flight: steps that may be in flight when one is planned.
        num_window_groups: groups of layers with the window beside those that see all tokens.
    """
    if num_blocks == 0:
        return RowBounds(0, block_size, max_chunk, 0, max_chunk)
    if num_window_groups:
        max_tokens = max_chunk + max(sliding_window - 1, num_in_flight * max_chunk)
        max_held = -(-max_tokens // block_size) + 1
        # Either every group holds all blocks of the longest sequence, or each of the others max_held.
        longest = max(num_blocks // (num_window_groups + 1), num_blocks - num_window_groups * max_held)
        cached = longest * block_size
        return RowBounds(sliding_window, block_size, max_chunk, max_held, cached, num_window_groups)
    num_tokens = (num_blocks - 1) * block_size
    chunk = min(max_chunk, num_tokens - (sliding_window - 1), num_tokens // (num_in_flight + 1))
    if sliding_window == 0 or chunk < min(max_chunk, block_size):
        return RowBounds(0, block_size, max_chunk, sys.maxsize, num_blocks * block_size)
    max_tokens = chunk + max(sliding_window - 1, num_in_flight * chunk)
    return RowBounds(sliding_window, block_size, chunk, -(-max_tokens // block_size) + 1, 0)
