"""8-bit integers or floats [N, K] with a scale per block: all, a row, or some rows and columns."""

from __future__ import annotations

import torch

from splitserve.engine_core.checkpoint.quantization.schemes import ScaledScheme
from splitserve.engine_core.checkpoint.weight_files import CheckpointTensor
from splitserve.worker.layers.parameter import Window
from splitserve.worker.weights.formats.base import FLOATS, Places, StoredTensor, Values
from splitserve.worker.weights.formats.groups import Groups, Piece, check_finite, num_groups
from splitserve.worker.weights.reading import read_matrix, read_whole


class ScaledTensor(StoredTensor):
    """A matrix in 8 bits with scales.

    Raises:
        ModelLoadError: a tensor is missing, or has another dtype or shape than the config implies.
    """

    def __init__(self, places: Places, scheme: ScaledScheme) -> None:
        outputs, inputs = places.shape
        self._scheme = scheme
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

    def load(self, window: Window) -> Values:
        """Read a region; see StoredTensor.load."""
        assert window.columns is not None, "only matrices are stored so"
        outputs, inputs = window.rows, window.columns
        codes = read_matrix(self._weight, outputs, inputs)
        groups = self._groups.taken(inputs, self._shape[1])
        scales = self._rows(self._scales, outputs, groups)
        zeros = None if self._zeros is None else self._rows(self._zeros, outputs, groups)

        def values(rows: range) -> torch.Tensor:
            some = slice(rows.start, rows.stop)
            those = None if zeros is None else zeros[some]
            return Piece(codes[some], scales[some], those, inputs).values(self._groups)

        return values

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
