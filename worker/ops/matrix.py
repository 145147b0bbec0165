"""The interface of a weight matrix, in the format that one device's kernels read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from splitserve.worker.ops.quantization import GroupCodes


class VocabularyPart(NamedTuple):
    """Which rows of a vocabulary a weight holds: as many as it has, from `first` on, of `vocab_size`."""

    first: int
    vocab_size: int


class Matrix(Protocol):
    """A weight [N, K] in the form in which one device's kernels read it."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""

    @property
    def num_bytes(self) -> int:
        """Memory it takes."""

    def fill(
        self, source: Tensor, first_row: int = 0, first_column: int = 0, kept: range | None = None
    ) -> None:
        """Write a rectangle.

        Args:
            source: [n, k], of any strides and dtype, on the CPU or the matrix's device; not kept.
            first_row: row of the matrix where its first element belongs.
            first_column: its column.
            kept: columns of source that belong to the matrix, where the others count for the scales of
                rows only; None for all.
        """

    def fill_group_codes(self, group_codes: GroupCodes, first_row: int = 0) -> None:
        """Write whole rows as integers of a file, in the form that it has."""


MatrixT_contra = TypeVar("MatrixT_contra", bound=Matrix, contravariant=True)
