"""What integers and the scales of their groups are worth: value = (code - zero point) * scale, in float32."""

from __future__ import annotations

from typing import NamedTuple

import torch

from splitserve.engine_core.checkpoint.weight_files import CheckpointTensor
from splitserve.engine_core.errors import ModelLoadError
from splitserve.worker.layers.parameter import Window
from splitserve.worker.ops.quantization import GroupCodes, GroupForm
from splitserve.worker.weights.formats.arrangement import KERNEL_GROUPS, Arrangement, arrange
from splitserve.worker.weights.reading import read_matrix, read_whole

_CHECKED_ROWS = 4096


class Groups:
    """Which group of inputs each column of a piece belongs to.

    Args:
        size: inputs of a group; 0 for all.
        order: int64 [K], the group of every input of the matrix; None if groups follow each other.

    Attributes:
        size, order: as given.
    """

    __slots__ = ("_arranged", "order", "size")

    def __init__(self, size: int, order: torch.Tensor | None = None) -> None:
        self.size = size
        self.order = order
        # Of the inputs of this rank, which are the same for all pieces.
        self._arranged: tuple[range, Arrangement] | None = None

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

    def kept(self, columns: range, num_inputs: int) -> int:
        """Return the largest group of the kernels that some inputs, of so many, can have; None: 0."""
        arranged = self.arranged(columns)
        if arranged is not None:
            return arranged.size
        ends = [columns.start] if columns.stop == num_inputs else [columns.start, columns.stop]
        borders = [*ends, self.size]
        return next((size for size in KERNEL_GROUPS if all(end % size == 0 for end in borders)), 0)

    def arranged(self, columns: range) -> Arrangement | None:
        """Return some inputs by their groups, in as little memory as can be; None: they are in order."""
        if self.order is None:
            return None
        if self._arranged is None or self._arranged[0] != columns:
            self._arranged = columns, arrange(self.order[columns.start : columns.stop])
        return self._arranged[1]

    def per_kept(self, values: torch.Tensor, columns: range, size: int) -> torch.Tensor:
        """Return values [n, taken groups] as float32 [n, G], one for each group of a size (0: all inputs).

        Groups are those of arranged inputs.
        """
        if not size:
            return values.float()
        arranged = self.arranged(columns)
        if arranged is not None:
            return values[:, arranged.groups].float()
        if self.size:
            first = columns.start // self.size
            return values[:, torch.arange(columns.start, columns.stop, size) // self.size - first].float()
        return values.float().expand(-1, -(-len(columns) // size))

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


def read_groups(source: CheckpointTensor, size: int, num_groups: int) -> Groups:
    """Return the groups of inputs that a tensor lists, whose usual order is not kept.

    Args:
        source: the group of every input, [K].
        size: inputs of a group; 0 for all.
        num_groups: how many there are.

    Raises:
        ModelLoadError: one is not below the number of groups.
    """
    order = read_whole(source).long()
    if ((order < 0) | (order >= num_groups)).any():
        raise ModelLoadError(
            f"{source.file.path}: tensor {source.name!r} names a group that is not from 0 to {num_groups - 1}"
        )
    follow_each_other = torch.equal(order, torch.arange(len(order)) // (size or len(order)))
    return Groups(size, None if follow_each_other else order)


def num_groups(num_inputs: int, group_size: int) -> int:
    """Return how many groups so many inputs have; a size of 0 means one."""
    return -(-num_inputs // group_size) if group_size else 1


class Integers(NamedTuple):
    """What decides in which form integers can be kept.

    Attributes:
        bits: of each.
        has_zeros: there are zero points.
        scales: of their groups.
    """

    bits: int
    has_zeros: bool
    scales: CheckpointTensor

    def form(self, groups: Groups, window: Window, num_inputs: int) -> GroupForm | None:
        """Return the form that holds a region of a matrix with so many inputs exactly, or None.

        Products of float16 or bfloat16 scales with integers fit float32, so that an offset may stand for a
        zero point; with scales in float32 a product must be all that there is.
        """
        assert window.columns is not None, "only matrices are stored so"
        is_product = self.bits == 8 and not self.has_zeros
        if self.scales.entry.dtype == "F32" and not is_product:
            return None
        if is_product and not groups.size:
            return GroupForm(8, 0, has_offsets=False)
        size = groups.kept(window.columns, num_inputs)
        return GroupForm(self.bits, size, self.has_zeros) if size else None


def group_codes(piece: Piece, form: GroupForm, groups: Groups) -> GroupCodes:
    """Return unsigned integers in a form, by their groups.

    Without zero points they are stored plus half of their range.
    """
    half = 2 ** (form.bits - 1)
    shift = 0 if form.bits == 4 and form.has_offsets else half
    arranged = groups.arranged(piece.columns)
    # Which code stands for no input does not matter, since the row has a zero there.
    unsigned = piece.codes if arranged is None else piece.codes[:, arranged.inputs.clamp_min(0)]
    # As unsigned bytes the difference wraps around to the bits of the negative number.
    codes = (unsigned - shift).view(torch.int8)
    scales = groups.per_kept(piece.scales, piece.columns, form.group)
    if not form.has_offsets:
        return GroupCodes(codes, scales, None)
    assert piece.zeros is not None, "integers without zero points have no offsets"
    zeros = groups.per_kept(piece.zeros, piece.columns, form.group)
    return GroupCodes(codes, scales, (shift - zeros) * scales)
