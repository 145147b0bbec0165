"""What a weight in a GPU's memory is to the operations: it knows the kernels that read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from splitserve.worker.ops.matrix import Matrix

if TYPE_CHECKING:
    from torch import Tensor

    from splitserve.worker.ops.codes.operations import CodedOps


class Products(Protocol):
    """The operations among which a weight chooses its own.

    Attributes:
        max_coded_rows: most rows that are multiplied with codes; it pays to write a weight out for more.
    """

    max_coded_rows: int

    @property
    def coded(self) -> CodedOps:
        """Those on weights of codes."""

    def dense_linear(self, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """Multiply with a row-major weight [N, K]; see Kernels.linear."""

    def expert_linear(
        self,
        out: Tensor,
        x: Tensor,
        weight: Tensor,
        scales: Tensor | None,
        starts: Tensor,
        bias: Tensor | None,
    ) -> None:
        """Multiply with row-major weights of experts, or with those in MXFP4 and their scales."""

    def dense_embedding(self, out: Tensor, token_ids: Tensor, weight: Tensor) -> None:
        """Copy rows of a row-major weight [V, H]."""


class MultipliedMatrix(Matrix, Protocol):
    """A weight in a GPU's memory."""

    def multiply(
        self, ops: Products, out: Tensor, x: Tensor, bias: Tensor | None, starts: Tensor | None = None
    ) -> None:
        """See Kernels.linear and, with starts, ExpertOps.linear."""

    def look_up(self, ops: Products, out: Tensor, token_ids: Tensor) -> None:
        """See Kernels.embedding."""
