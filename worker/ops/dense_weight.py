"""A row-major weight, as torch and the custom CUDA kernels read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from splitserve.worker.ops.products import Products
    from splitserve.worker.ops.quantization import GroupCodes


class DenseWeight:
    """A matrix [N, K], filled piece by piece.

    Args:
        shape: (N, K).
        dtype: of its elements and of the activations it multiplies.
        device: where it lives.

    Attributes:
        data: [N, K], contiguous.

    Raises:
        RuntimeError: there is not enough memory.
    """

    __slots__ = ("data",)

    def __init__(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
        self.data = torch.empty(shape, dtype=dtype, device=device)

    @classmethod
    def of(cls, matrix: torch.Tensor) -> DenseWeight:
        """Copy a whole matrix [N, K], on its device."""
        weight = cls((matrix.shape[0], matrix.shape[1]), matrix.dtype, matrix.device)
        weight.fill(matrix)
        return weight

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.data.shape[0], self.data.shape[1]

    @property
    def num_bytes(self) -> int:
        """Memory it takes."""
        return self.data.nbytes

    def fill(
        self,
        source: torch.Tensor,
        first_row: int = 0,
        first_column: int = 0,
        kept: range | None = None,
    ) -> None:
        """Write a rectangle; returns once the source may be overwritten.

        Args:
            source: [n, k] of any strides and dtype, converted.
            first_row: row of the matrix where its first element belongs.
            first_column: its column.
            kept: columns of source that belong to the matrix; None for all.

        Raises:
            ValueError: it does not fit.
        """
        if kept is not None:
            source = source[:, kept.start : kept.stop]
        rows, columns = source.shape
        target = self.data[first_row : first_row + rows, first_column : first_column + columns]
        if target.shape != source.shape:
            raise ValueError(f"source: {rows} x {columns} from ({first_row}, {first_column}) does not fit")
        target.copy_(source)

    def fill_group_codes(self, group_codes: GroupCodes, first_row: int = 0) -> None:
        """Never called: weights of integers are CodedWeights."""
        raise AssertionError("this weight is not quantized")

    def multiply(
        self, ops: Products, out: Tensor, x: Tensor, bias: Tensor | None, starts: Tensor | None = None
    ) -> None:
        """See MultipliedMatrix.multiply."""
        if starts is None:
            ops.dense_linear(out, x, self.data, bias)
        else:
            ops.expert_linear(out, x, self.data, None, starts, bias)

    def look_up(self, ops: Products, out: Tensor, token_ids: Tensor) -> None:
        """See MultipliedMatrix.look_up."""
        ops.dense_embedding(out, token_ids, self.data)
