"""CUDA operations whose every row has the same bits in any batch, matrix products included."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from splitserve.worker._native import load_library
from splitserve.worker.ops.cuda import CudaLatentOps, CudaOps
from splitserve.worker.ops.dense_weight import DenseWeight

if TYPE_CHECKING:
    from torch import Tensor

# A product of so many rows takes a current GPU about as long as reading the weight: decode costs little more,
# a long prefill reads the weights once per tile.
ROW_TILE = 128


@cache
def invariant_ops() -> InvariantOps:
    """Return the operations of the installed CUDA library, loaded once.

    Raises:
        ImportError: the library was not built, because there was no nvcc.
    """
    return InvariantOps(load_library("splitserve_cuda"))


class InvariantLatentOps(CudaLatentOps):
    """Multiplies tiles of 128 rows that always lie alike in memory; see InvariantOps."""

    def multiply_heads(self, out: Tensor, x: Tensor, weight: DenseWeight) -> None:
        """See LatentOps.multiply_heads; the order of summation depends on Hq, N and K alone."""
        for begin in range(0, x.shape[0], ROW_TILE):
            tile = slice(begin, begin + ROW_TILE)
            rows = x[tile].shape[0]
            padded = x.new_zeros(ROW_TILE, *x.shape[1:])
            padded[:rows] = x[tile]
            product = out.new_empty(ROW_TILE, *out.shape[1:])
            super().multiply_heads(product, padded, weight)
            out[tile] = product[:rows]


class InvariantOps(CudaOps):
    """Multiplies tiles of 128 rows, padded with zeros: cuBLAS is always asked for the same shape.

    Which kernel it takes, and so the order in which it sums, depends on the shape; within one kernel all rows
    are summed alike. The other operations are invariant by themselves.
    """

    # Few and many rows have the same sums only in one kernel.
    max_coded_rows = sys.maxsize

    def __init__(self, library: Any) -> None:
        super().__init__(library)
        self.latents = InvariantLatentOps(library)

    def dense_linear(self, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """See CudaOps.dense_linear; the order of summation depends on N and K alone."""
        rows = x.shape[0]
        whole = rows - rows % ROW_TILE
        for begin in range(0, whole, ROW_TILE):
            tile = slice(begin, begin + ROW_TILE)
            super().dense_linear(out[tile], x[tile], weight, bias)
        if whole < rows:
            padded = x.new_zeros(ROW_TILE, x.shape[1])
            padded[: rows - whole] = x[whole:]
            product = out.new_empty(ROW_TILE, out.shape[1])
            super().dense_linear(product, padded, weight, bias)
            out[whole:] = product[: rows - whole]
