"""Which layers share their KV blocks, if they differ in how many tokens they see?

A block holds as many layers in every group, so that all are of one size and come from one pool. Layers are
dealt out in the order of what they see: the first group has those that see all tokens, or most, and each
further one, a window group, the widest of the rest. A row gives blocks back when they have left the window of
the widest layer of their group. A place of a block that no layer fills stays empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Each group costs a block table of every row.
MAX_WINDOW_GROUPS = 8
# Of the memory of a longest sequence without groups; more tables for less are not worth it.
_LARGEST_SHARE = 0.9
# Longer than any sequence.
_ALL_TOKENS = 2**62


class LayerGroups(NamedTuple):
    """How the layers of a model are grouped.

    Attributes:
        windows: of each group behind the first, tokens that its layers see at most, the widest first; empty
            if all layers are in one group.
    """

    windows: tuple[int, ...] = ()

    @property
    def num_window_groups(self) -> int:
        """Groups behind the first."""
        return len(self.windows)

    def place(self, windows: Sequence[int]) -> list[LayerPlace]:
        """Return where each layer of a stage keeps its keys and values.

        Args:
            windows: of these layers, 0 for those that see all tokens.
        """
        if not self.windows:
            return [LayerPlace(i, 0) for i in range(len(windows))]
        order = sorted(range(len(windows)), key=lambda i: -_reach(windows[i]))
        num_places = 1
        for rank, i in enumerate(order):
            # So many groups keep what this layer sees, and with it all layers before it in the order.
            num_groups = 1 + sum(window >= _reach(windows[i]) for window in self.windows)
            num_places = max(num_places, -(-(rank + 1) // num_groups))
        places = {i: LayerPlace(rank % num_places, rank // num_places) for rank, i in enumerate(order)}
        return [places[i] for i in range(len(windows))]


class LayerPlace(NamedTuple):
    """The place of a layer within the blocks of its group, and the number of this group."""

    place: int
    group: int


def group_layers(windows: Sequence[int], max_model_len: int) -> LayerGroups:
    """Choose the grouping in which the longest sequence takes the least memory.

    Args:
        windows: of all layers of the model, 0 for those that see all tokens.
        max_model_len: of the longest sequence, in tokens.
    """
    ordered = sorted(windows, key=_reach, reverse=True)
    kept = [min(_reach(window), max_model_len) for window in ordered]
    best, least = LayerGroups(), int(_LARGEST_SHARE * sum(kept[:1]) * len(kept))
    # Layers that see all tokens are in the first group.
    for num_places in range(len(ordered) - 1, max(1, windows.count(0)) - 1, -1):
        of_groups = ordered[num_places::num_places]
        cost = num_places * sum(kept[::num_places])
        if len(of_groups) <= MAX_WINDOW_GROUPS and cost < least:
            best, least = LayerGroups(tuple(of_groups)), cost
    return best


def _reach(window: int) -> int:
    return window or _ALL_TOKENS
