"""What is the cheaper way to get the KV of some positions back: recompute them, or move their blocks?

Computing a position costs more the more positions precede it, while every move costs the same. So of a run of
blocks either all are worth moving or none is: with m of them moved, the cost is a concave function of m,
smallest at one of its ends. For the same reason a block is judged by the longest sequence it belonged to,
since a prefix is found only as far as all of its blocks are there.
"""

from __future__ import annotations

from collections.abc import Callable

from splitserve.engine_core.kv_cache.window import ALL_SEE_ALL, LayerWindows

RecomputeNs = Callable[[int, int], int]
"""Nanoseconds that computing positions first..end-1 takes, 0 while nothing is known."""


def nothing_known(first_token: int, end_token: int) -> int:
    """Return 0: used until costs have been measured."""
    return 0


class KVCosts:
    """Compares moving with recomputing, in whole nanoseconds; while costs are unknown, moving is preferred.

    Args:
        recompute_ns: see RecomputeNs.
        move_block_ns: nanoseconds one block takes from pool to host or back; 0 while not known.
        block_size: tokens per block.
        windows: of the layers; window groups have blocks of their own, needed for the last window only.
    """

    def __init__(
        self,
        recompute_ns: RecomputeNs,
        move_block_ns: int,
        block_size: int,
        windows: LayerWindows = ALL_SEE_ALL,
    ) -> None:
        self._recompute_ns = recompute_ns
        self._move_block_ns = move_block_ns
        self._block_size = block_size
        # Blocks that a window holds, with the number of groups that have it.
        self._in_windows = [(-(-window // block_size) + 1, count) for window, count in windows.counted()]

    def is_worth_saving(self, num_blocks: int) -> bool:
        """Whether num_blocks blocks of a prefix should be moved out and back rather than computed again."""
        return self.is_worth_loading(0, num_blocks, 2 * self._num_moved(num_blocks))

    def is_worth_loading(self, first_block: int, end_block: int, num_moves: int) -> bool:
        """Whether num_moves moves take no longer than computing blocks first..end-1."""
        recompute_ns = self._recompute_ns(first_block * self._block_size, end_block * self._block_size)
        return not recompute_ns or num_moves * self._move_block_ns <= recompute_ns

    def return_cost(self, first_block: int, num_computed_tokens: int, *, can_move: bool) -> int:
        """Return the nanoseconds to get the KV from first_block to num_computed_tokens back the cheaper way.

        Until costs are known, the number of tokens is returned instead.
        """
        block_size = self._block_size
        recompute_ns = self._recompute_ns(first_block * block_size, num_computed_tokens)
        if not recompute_ns:
            return num_computed_tokens - first_block * block_size
        num_full = num_computed_tokens // block_size
        if not can_move or not self._move_block_ns:
            return recompute_ns
        rest_ns = self._recompute_ns(num_full * block_size, num_computed_tokens)
        return min(recompute_ns, 2 * self._num_moved(num_full - first_block) * self._move_block_ns + rest_ns)

    def _num_moved(self, num_blocks: int) -> int:
        """Return how many blocks of all groups bring num_blocks blocks of tokens back."""
        return num_blocks + sum(count * min(num_blocks, held) for held, count in self._in_windows)
