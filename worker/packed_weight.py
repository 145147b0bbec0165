"""The weight of a linear layer in the order in which the kernels read it."""

from __future__ import annotations

import torch

from worker import ops
from worker.pages import zero_pages

_PANEL_ROWS = 32


class PackedWeight:
    """A matrix [N, K] in panels of 32 rows; csrc/cpu/packed.h describes the layout.

    It is made of zeros and filled piece by piece, so a checkpoint can be packed while it is read.

    Args:
        shape: (N, K), each at least 1.
        dtype: bfloat16 or float32, that of the activations it multiplies.

    Attributes:
        shape: (N, K).
        data: [ceil(N / 32), ceil(K / pair), 32, pair], pair 2 for bfloat16 and 1 for float32.

    Raises:
        OSError: the address space is not there.
    """

    __slots__ = ("data", "shape")

    def __init__(self, shape: tuple[int, int], dtype: torch.dtype) -> None:
        rows, columns = shape
        pair = 4 // dtype.itemsize
        self.shape = shape
        self.data = zero_pages(
            (-(-rows // _PANEL_ROWS), -(-columns // pair), _PANEL_ROWS, pair), dtype, huge=True
        )

    @classmethod
    def of(cls, matrix: torch.Tensor) -> PackedWeight:
        """Pack a whole matrix [N, K]."""
        weight = cls((matrix.shape[0], matrix.shape[1]), matrix.dtype)
        weight.fill(matrix)
        return weight

    def fill(self, source: torch.Tensor, first_row: int = 0, first_column: int = 0) -> None:
        """Write a rectangle of the matrix.

        Args:
            source: [n, k], of any strides; converted to the weight's dtype.
            first_row: row of the matrix where its first element belongs.
            first_column: its column.

        Raises:
            ValueError: it does not fit.
        """
        ops.pack_weight(self, source.to(self.data.dtype), first_row, first_column)
