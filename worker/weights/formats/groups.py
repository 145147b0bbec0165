"""What integers and the scales of their groups are worth: value = (code - zero point) * scale, in float32."""

from __future__ import annotations

from typing import NamedTuple

import torch

from splitserve.engine_core.checkpoint.weight_files import CheckpointTensor
from splitserve.engine_core.errors import ModelLoadError
from splitserve.worker.layers.parameter import Window
from splitserve.worker.ops.quantization import GROUP_COLUMNS
from splitserve.worker.weights.formats.base import IntegerForm
from splitserve.worker.weights.reading import read_matrix, read_whole

_CHECKED_ROWS = 4096


class Groups(NamedTuple):
    """Which group of inputs each column of a piece belongs to.

    Attributes:
        size: inputs of a group; 0 for all.
        order: int64 [K], the group of every input of the matrix; None if groups follow each other.
    """

    size: int
    order: torch.Tensor | None = None

    def taken(self, columns: range, num_groups: int) -> range:
        """Return the groups whose scales some inputs need, of all."""
        if self.order is not None or not self.size:
            return range(num_groups)
        return range(columns.start // self.size, -(-columns.stop // self.size))

    def spread(self, values: torch.Tensor, columns: range) -> torch.Tensor:
        """Return float32 [n, k], for each input the value of its group in values [n, taken groups]."""
        if self.order is not None:
            return values[:, self.order[columns.start : columns.stop]]
        if not self.size:
            return values.expand(-1, len(columns))
        first = columns.start // self.size
        return values[:, torch.arange(columns.start, columns.stop) // self.size - first]

    def per_kept_group(self, scales: torch.Tensor, columns: range) -> torch.Tensor:
        """Return scales [n, taken groups] as bfloat16 [n, k / 32], one for each group of the kernels."""
        return self.spread(scales, columns)[:, ::GROUP_COLUMNS].bfloat16().contiguous()

    def are_whole(self, columns: range) -> bool:
        """Whether some inputs are whole groups that follow each other."""
        return bool(
            self.order is None
            and self.size
            and columns.start % self.size == 0
            and len(columns) % self.size == 0
        )


class Piece(NamedTuple):
    """Some rows and columns of a matrix of integers.

    Attributes:
        codes: int8 or uint8 [n, k].
        scales: [n, G] of any float dtype, of the taken groups.
        zeros: integers [n, G]; None for zeros.
        columns: of the matrix.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    columns: range

    def values(self, groups: Groups) -> torch.Tensor:
        """Return (codes - zeros) * scales, float32 [n, k]: an exact difference, rounded once."""
        scales = self.scales.float()
        zeros = None if self.zeros is None else self.zeros.float()
        values = self.codes.float()
        if groups.are_whole(self.columns):
            parted = values.view(values.shape[0], -1, groups.size)
            if zeros is not None:
                parted -= zeros[:, :, None]
            parted *= scales[:, :, None]
            return values
        if zeros is not None:
            values -= groups.spread(zeros, self.columns)
        values *= groups.spread(scales, self.columns)
        return values


def check_finite(source: CheckpointTensor) -> None:
    """Check that scales are numbers.

    Raises:
        ModelLoadError: one is infinite or NaN.
    """
    shape = source.entry.shape
    if len(shape) != 2:
        pieces = iter([read_whole(source)])
    else:
        firsts = range(0, shape[0], _CHECKED_ROWS)
        rows = (range(first, min(first + _CHECKED_ROWS, shape[0])) for first in firsts)
        pieces = (read_matrix(source, some, range(shape[1])) for some in rows)
    for values in pieces:
        if not values.isfinite().all():
            raise ModelLoadError(
                f"{source.file.path}: tensor {source.name!r} holds a scale that is not a finite number"
            )


def read_order(source: CheckpointTensor, num_groups: int) -> torch.Tensor:
    """Return the group of every input, int64 [K].

    Raises:
        ModelLoadError: one is not below the number of groups.
    """
    order = read_whole(source).long()
    if ((order < 0) | (order >= num_groups)).any():
        raise ModelLoadError(
            f"{source.file.path}: tensor {source.name!r} names a group that is not from 0 to {num_groups - 1}"
        )
    return order


def num_groups(num_inputs: int, group_size: int) -> int:
    """Return how many groups so many inputs have; a size of 0 means one."""
    return -(-num_inputs // group_size) if group_size else 1


def four_bits(is_fit: bool, groups: Groups, window: Window, scales: CheckpointTensor) -> IntegerForm:
    """Return int4 if integers of 4 bits fit and their groups are whole ones of the kernels, else "plain".

    Args:
        is_fit: they have no zero points, and inputs are in order.
        groups: of the matrix.
        window: the region that is asked for.
        scales: of the groups.
    """
    columns = window.columns
    ends = () if columns is None else (columns.start, columns.stop, groups.size)
    is_fit = is_fit and columns is not None and all(end % GROUP_COLUMNS == 0 for end in ends)
    return IntegerForm("int4" if is_fit else "plain", is_exact=scales.entry.dtype == "BF16")
