"""Which layers share their KV blocks, if some see all tokens and others have a window?

A block holds as many layers in every group, so that all are of one size and come from one pool. The first
group has the layers that see all tokens; those with a window are dealt out to window groups, whose blocks a
row gives back when they have left the window. A place of a block that no layer fills stays empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Each group costs a block table of every row.
MAX_WINDOW_GROUPS = 8
# Of the memory of a longest sequence without groups; more tables for less are not worth it.
_LARGEST_SHARE = 0.9


class LayerGroups(NamedTuple):
    """How the layers of a model are grouped.

    Attributes:
        num_window_groups: groups behind the first; 0 if all layers are in one.
        window: tokens that layers of window groups see at most; 0 without them.
    """

    num_window_groups: int = 0
    window: int = 0

    def place(self, windows: Sequence[int]) -> list[LayerPlace]:
        """Return where each layer of a stage keeps its keys and values.

        Args:
            windows: of these layers, 0 for those that see all tokens.
        """
        if not self.num_window_groups:
            return [LayerPlace(i, 0) for i in range(len(windows))]
        places: list[LayerPlace] = []
        for i, window in enumerate(windows):
            number = sum(bool(other) == bool(window) for other in windows[:i])
            place = divmod(number, self.num_window_groups) if window else (number, -1)
            places.append(LayerPlace(place[0], place[1] + 1))
        return places


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
    num_full, num_windowed = windows.count(0), len(windows) - windows.count(0)
    window = max(windows, default=0)
    if not num_full or not num_windowed:
        return LayerGroups()
    best, least = LayerGroups(), int(_LARGEST_SHARE * len(windows) * max_model_len)
    for num_groups in range(1, min(MAX_WINDOW_GROUPS, num_windowed) + 1):
        num_places = max(num_full, -(-num_windowed // num_groups))
        cost = num_places * (max_model_len + num_groups * min(window, max_model_len))
        if cost < least:
            best, least = LayerGroups(num_groups, window), cost
    return best
