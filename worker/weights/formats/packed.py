"""compressed-tensors' packed integers: words along the inputs, zero points packed along the outputs.

weight_packed int32 [N, ceil(K * bits / 32)], weight_scale [N, G], weight_zero_point int32
[ceil(N * bits / 32), G] unless they are symmetric, weight_shape [2], and weight_g_idx [K] where inputs are
out of order. Integers are stored plus 2 ** (bits - 1), so that offset and zero point are one number.
"""

from __future__ import annotations

import torch

from splitserve.engine_core.checkpoint.quantization.schemes import PackedScheme
from splitserve.engine_core.errors import ModelLoadError
from splitserve.worker.layers.parameter import Window
from splitserve.worker.ops.quantization import Quantized
from splitserve.worker.weights.formats.base import FLOATS, IntegerForm, Places, StoredTensor, Values
from splitserve.worker.weights.formats.groups import (
    Groups,
    Piece,
    check_finite,
    four_bits,
    num_groups,
    read_order,
)
from splitserve.worker.weights.formats.words import cover, unpack_columns, unpack_rows
from splitserve.worker.weights.reading import read_matrix, read_whole


class PackedTensor(StoredTensor):
    """A matrix of packed integers.

    Raises:
        ModelLoadError: a tensor is missing, or has another dtype or shape than the config implies.
    """

    def __init__(self, places: Places, scheme: PackedScheme) -> None:
        outputs, inputs = places.shape
        self._scheme = scheme
        self._plain_shape = places.shape
        self._per_word = per_word = 32 // scheme.bits
        self._count = count = num_groups(inputs, scheme.group_size)
        self._groups = Groups(scheme.group_size)
        self._words = places.take("weight_packed", ("I32",), (outputs, -(-inputs // per_word)))
        self._scales = places.take("weight_scale", FLOATS, (outputs, count))
        self._zeros = self._order = None
        if not scheme.is_symmetric:
            self._zeros = places.take("weight_zero_point", ("I32",), (-(-outputs // per_word), count))
        if scheme.has_order:
            self._order = places.take("weight_g_idx", ("I32", "I64"), (inputs,))
        self._shape = places.take("weight_shape", ("I64", "I32"), (2,))
        parts = (self._words, self._scales, self._shape, self._zeros, self._order)
        super().__init__(*(part for part in parts if part is not None))

    def check_values(self) -> None:
        """Check shape and scales, and groups of inputs, which are kept."""
        shape = tuple(read_whole(self._shape).tolist())
        if shape != self._plain_shape:
            raise ModelLoadError(
                f"{self._shape.file.path}: tensor {self._shape.name!r} says {list(shape)}, config.json asks "
                f"for {list(self._plain_shape)}"
            )
        check_finite(self._scales)
        if self._order is not None:
            self._groups = Groups(self._scheme.group_size, read_order(self._order, self._count))

    def num_bytes(self, window: Window) -> int:
        """Bytes of the integers."""
        return len(window.rows) * -(-window.width * self._scheme.bits // 8)

    def integer_form(self, window: Window) -> IntegerForm:
        """int4 for whole groups of 32 inputs without zero points; the kernels' int8 has no -128."""
        scheme = self._scheme
        is_fit = scheme.bits == 4 and scheme.is_symmetric and not scheme.has_order
        return four_bits(is_fit, self._groups, window, self._scales)

    def load_codes(self, window: Window) -> Quantized:
        """Return the integers of a region, and a scale per 32 inputs."""
        assert window.columns is not None, "only matrices are stored so"
        outputs, inputs = window.rows, window.columns
        needed, half = cover(inputs, self._per_word), 2 ** (self._scheme.bits - 1)
        words = read_matrix(self._words, outputs, needed.words)
        codes = unpack_columns(words, self._scheme.bits, needed.offset, len(inputs))
        # As unsigned bytes the difference wraps around to the bits of the negative number.
        codes = (codes - half).view(torch.int8)
        groups = self._groups.taken(inputs, self._count)
        scales = read_matrix(self._scales, outputs, groups)
        return Quantized(codes, self._groups.per_kept_group(scales, inputs))

    def load(self, window: Window) -> Values:
        """Read a region; see StoredTensor.load."""
        assert window.columns is not None, "only matrices are stored so"
        outputs, inputs = window.rows, window.columns
        bits = self._scheme.bits
        needed = cover(inputs, self._per_word)
        words = read_matrix(self._words, outputs, needed.words)
        groups = self._groups.taken(inputs, self._count)
        scales = read_matrix(self._scales, outputs, groups)
        zeros = self._read_zeros(outputs, groups)

        def values(rows: range) -> torch.Tensor:
            some = slice(rows.start, rows.stop)
            codes = unpack_columns(words[some], bits, needed.offset, len(inputs))
            return Piece(codes, scales[some], zeros[some], inputs).values(self._groups)

        return values

    def _read_zeros(self, outputs: range, groups: range) -> torch.Tensor:
        """Return what the integers are stored plus, uint8 [n, groups]."""
        bits = self._scheme.bits
        if self._zeros is None:
            return torch.full((len(outputs), len(groups)), 2 ** (bits - 1), dtype=torch.uint8)
        beside = cover(outputs, self._per_word)
        words = read_matrix(self._zeros, beside.words, groups)
        return unpack_rows(words, bits, beside.offset, len(outputs)).t()
