"""In what order are inputs kept whose groups do not follow each other? By their groups.

A group of a file fills whole groups of the kernels, the last of which may be padded: a whole matrix needs no
padding if its groups are multiples of the kernels', but a shard of its inputs has a part of each group.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

# Sizes of groups that kernels have, the largest first.
KERNEL_GROUPS = (128, 64, 32, 16)
# Bytes of a scale and an offset, and of a code of 4 bits.
_SCALE_BYTES, _CODE_BYTES = 8, 0.5


class Arrangement(NamedTuple):
    """Inputs by their groups.

    Attributes:
        inputs: int64 [K'], counted from the first; -1 where a group of the kernels has none.
        groups: int64 [ceil(K' / size)], the group of each group of the kernels.
        size: of these.
    """

    inputs: torch.Tensor
    groups: torch.Tensor
    size: int

    @property
    def num_bytes(self) -> float:
        """Memory of a row of codes of 4 bits, at most."""
        return len(self.inputs) * _CODE_BYTES + len(self.groups) * _SCALE_BYTES


def arrange(order: torch.Tensor) -> Arrangement:
    """Return the arrangement that takes the least memory.

    Args:
        order: the group of each input, int64 [K], K >= 1.
    """
    groups, inputs = order.sort(stable=True)
    found = [_in_groups_of(size, inputs, groups) for size in KERNEL_GROUPS]
    return min(found, key=lambda each: each.num_bytes)


def _in_groups_of(size: int, inputs: torch.Tensor, groups: torch.Tensor) -> Arrangement:
    """Put inputs [k], which follow each other by their groups [k], into groups of the kernels."""
    counts = groups.bincount()
    numbers = counts.nonzero().flatten()
    counts = counts[numbers]
    wholes = (counts + size - 1) // size
    # By how much a group's places are behind those that its inputs have without gaps.
    behind = (wholes.cumsum(0) - wholes) * size - (counts.cumsum(0) - counts)
    places = torch.arange(len(inputs)) + behind.repeat_interleave(counts)
    arranged = torch.full((int(places[-1]) + 1,), -1)
    arranged[places] = inputs
    return Arrangement(arranged, numbers.repeat_interleave(wholes), size)
