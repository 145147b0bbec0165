"""8-bit integers or floats [N, K] with a scale per block: all, a row, or some rows and columns."""

from __future__ import annotations

from collections.abc import Callable

import torch

from splitserve.engine_core.checkpoint.quantization.schemes import ScaledScheme
from splitserve.engine_core.checkpoint.weight_files import CheckpointTensor
from splitserve.engine_core.errors import ModelLoadError
from splitserve.worker.layers.parameter import Window
from splitserve.worker.ops.quantization import GroupCodes, GroupForm
from splitserve.worker.weights.formats.base import FLOATS, Places, StoredTensor, Values, where
from splitserve.worker.weights.formats.groups import (
    Groups,
    Integers,
    Piece,
    check_finite,
    group_codes,
    num_groups,
)
from splitserve.worker.weights.reading import read_matrix, read_whole

# Of E4M3, with either sign; it has no infinity.
_NAN = 0x7F


class ScaledTensor(StoredTensor):
    """A matrix in 8 bits with scales.

    Raises:
        ModelLoadError: a tensor is missing, or has another dtype or shape than the config implies.
    """

    def __init__(self, places: Places, scheme: ScaledScheme) -> None:
        outputs, inputs = places.shape
        self._scheme = scheme
        self._num_inputs = inputs
        self._groups = Groups(scheme.block_columns)
        self._shape = (num_groups(outputs, scheme.block_rows), num_groups(inputs, scheme.block_columns))
        self._weight = places.take("weight", (scheme.dtype,), places.shape)
        self._scales = places.take(scheme.scale, FLOATS, *self._shapes())
        self._zeros = None
        if not scheme.is_symmetric:
            self._zeros = places.take("weight_zero_point", ("I8",), *self._shapes())
        parts = (self._weight, self._scales, self._zeros)
        super().__init__(*(part for part in parts if part is not None))

    def check_values(self) -> None:
        """Check the scales."""
        check_finite(self._scales)

    def num_bytes(self, window: Window) -> int:
        """Bytes of the integers."""
        return len(window.rows) * window.width

    def integer_form(self, window: Window) -> GroupForm | None:
        """Int8 in groups or, without zero points, in whole rows; FP8 in groups."""
        if self._scheme.dtype != "I8":
            assert window.columns is not None, "only matrices are stored so"
            size = self._groups.kept(window.columns, self._num_inputs)
            return GroupForm(8, size, has_offsets=False, is_float=True) if size else None
        integers = Integers(8, not self._scheme.is_symmetric, self._scales)
        form = integers.form(self._groups, window, self._num_inputs)
        return form and form._replace(takes_int8=self._scheme.takes_int8 and not form.group)

    def load_codes(self, window: Window) -> GroupCodes:
        """Return the integers of a region; see StoredTensor.load_codes."""
        form = self.integer_form(window)
        assert form is not None, "no form holds its integers"
        piece = self._read_piece(window)(range(len(window.rows)))
        if form.is_float:
            return self._float_codes(piece, form)
        # Signed integers, as if they had been stored plus half of their range.
        stored = piece.codes.view(torch.uint8) + 128
        zeros = None if piece.zeros is None else piece.zeros.float() + 128
        return group_codes(piece._replace(codes=stored, zeros=zeros), form, self._groups)

    def _float_codes(self, piece: Piece, form: GroupForm) -> GroupCodes:
        codes = piece.codes.view(torch.uint8)
        if ((codes & _NAN) == _NAN).any():
            raise ModelLoadError(f"{where(self._weight)} holds values that are not finite numbers")
        return GroupCodes(codes, self._groups.per_kept(piece.scales, piece.columns, form.group), None)

    def load(self, window: Window) -> Values:
        """Read a region; see StoredTensor.load."""
        piece = self._read_piece(window)
        return lambda rows: piece(rows).values(self._groups)

    def _read_piece(self, window: Window) -> Callable[[range], Piece]:
        """Read a region; return a function of some of its rows that takes them."""
        assert window.columns is not None, "only matrices are stored so"
        outputs, inputs = window.rows, window.columns
        codes = read_matrix(self._weight, outputs, inputs)
        groups = self._groups.taken(inputs, self._shape[1])
        scales = self._rows(self._scales, outputs, groups)
        zeros = None if self._zeros is None else self._rows(self._zeros, outputs, groups)

        def piece(rows: range) -> Piece:
            some = slice(rows.start, rows.stop)
            return Piece(codes[some], scales[some], None if zeros is None else zeros[some], inputs)

        return piece

    def _shapes(self) -> list[tuple[int, ...]]:
        """Shapes that scales may have; a dimension of 1 may be left out."""
        rows, columns = self._shape
        shapes: list[tuple[int, ...]] = [(rows, columns)]
        if columns == 1:
            shapes.append((rows,))
        if rows == columns == 1:
            shapes.append(())
        return shapes

    def _rows(self, source: CheckpointTensor, outputs: range, groups: range) -> torch.Tensor:
        """Return the scales or zero points of some outputs, [n, groups]."""
        height = self._scheme.block_rows
        if not height:
            return read_whole(source).view(1, -1)[:, groups.start : groups.stop].expand(len(outputs), -1)
        first, last = outputs.start // height, (outputs.stop - 1) // height
        if len(source.entry.shape) == 2:
            blocks = read_matrix(source, range(first, last + 1), groups)
        else:
            blocks = read_whole(source)[first : last + 1, None]
        return blocks[torch.arange(outputs.start, outputs.stop) // height - first]
