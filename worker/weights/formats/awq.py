"""AWQ's GEMM layout: words of 8 outputs in an order of its own, and scales and zero points per group.

qweight [K, N / 8] and qzeros [G, N / 8], int32, scales [G, N]. The 4 bits of output o of a word are those at
4 * (0, 4, 1, 5, 2, 6, 3, 7)[o].
"""

from __future__ import annotations

import torch

from splitserve.engine_core.checkpoint.quantization.schemes import AwqScheme
from splitserve.engine_core.checkpoint.weight_files import CheckpointTensor
from splitserve.worker.layers.parameter import Window
from splitserve.worker.weights.formats.base import FLOATS, Places, StoredTensor
from splitserve.worker.weights.formats.groups import Groups, Piece, check_finite, num_groups
from splitserve.worker.weights.formats.words import cover, unpack
from splitserve.worker.weights.reading import read_matrix
from splitserve.worker.weights.tensor_source import Staging

_PER_WORD = 8
_PLACES = torch.tensor((0, 4, 1, 5, 2, 6, 3, 7))


class AwqTensor(StoredTensor):
    """A matrix as AWQ stores it.

    Raises:
        ModelLoadError: a tensor is missing, or has another dtype or shape than the config implies.
    """

    def __init__(self, places: Places, scheme: AwqScheme) -> None:
        outputs, inputs = places.shape
        if outputs % _PER_WORD:
            raise places.error(f"has {outputs} outputs, which is no multiple of {_PER_WORD}")
        self._count = count = num_groups(inputs, scheme.group_size)
        self._groups = Groups(scheme.group_size)
        self._words = places.take("qweight", ("I32",), (inputs, outputs // _PER_WORD))
        self._zeros = places.take("qzeros", ("I32",), (count, outputs // _PER_WORD))
        self._scales = places.take("scales", FLOATS, (count, outputs))
        super().__init__(self._words, self._scales, self._zeros)

    def check_values(self) -> None:
        """Check the scales."""
        check_finite(self._scales)

    def num_bytes(self, window: Window) -> int:
        """Bytes of the integers."""
        return len(window.rows) * -(-window.width // 2)

    def read(self, window: Window, staging: Staging) -> torch.Tensor:
        """Return a rectangle in float32."""
        assert window.columns is not None, "only matrices are stored so"
        outputs, inputs = window.rows, window.columns
        groups = self._groups.taken(inputs, self._count)
        scales = read_matrix(self._scales, groups, outputs)
        codes = _read_turned(self._words, inputs, outputs)
        zeros = _read_turned(self._zeros, groups, outputs)
        return Piece(codes, scales.t(), zeros, inputs).values(self._groups)


def _read_turned(source: CheckpointTensor, rows: range, outputs: range) -> torch.Tensor:
    """Return some integers of the file, [rows, outputs], as uint8 [outputs, rows]."""
    needed = cover(outputs, _PER_WORD)
    integers = unpack(read_matrix(source, rows, needed.words), 4)[..., _PLACES].flatten(1)
    return integers[:, needed.offset : needed.offset + len(outputs)].t().contiguous()
