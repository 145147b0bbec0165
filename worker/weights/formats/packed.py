"""compressed-tensors' packed integers: words along the inputs, zero points packed along the outputs.

weight_packed int32 [N, ceil(K * bits / 32)], weight_scale [N, G], weight_zero_point int32
[ceil(N * bits / 32), G] unless they are symmetric, weight_shape [2], and weight_g_idx [K] where inputs are
out of order. Integers are stored plus 2 ** (bits - 1), so that offset and zero point are one number.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from splitserve.engine_core.checkpoint.quantization.schemes import PackedScheme
from splitserve.engine_core.errors import ModelLoadError
from splitserve.worker.layers.parameter import Window
from splitserve.worker.ops.quantization import GroupCodes, GroupForm
from splitserve.worker.weights.formats.base import FLOATS, Places, StoredTensor, Values
from splitserve.worker.weights.formats.groups import (
    Groups,
    Integers,
    Piece,
    check_finite,
    group_codes,
    num_groups,
    read_groups,
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
            self._groups = read_groups(self._order, self._scheme.group_size, self._count)

    def num_bytes(self, window: Window) -> int:
        """Bytes of the integers."""
        return len(window.rows) * -(-window.width * self._scheme.bits // 8)

    def integer_form(self, window: Window) -> GroupForm | None:
        """Groups by their numbers, with offsets if there are zero points."""
        integers = Integers(self._scheme.bits, not self._scheme.is_symmetric, self._scales)
        return integers.form(self._groups, window, self._plain_shape[1])

    def input_order(self, window: Window) -> torch.Tensor | None:
        """Inputs by their groups; see StoredTensor.input_order."""
        assert window.columns is not None, "only matrices are stored so"
        arranged = self._groups.arranged(window.columns)
        return None if arranged is None else arranged.inputs

    def load_codes(self, window: Window) -> GroupCodes:
        """Return the integers of a region; see StoredTensor.load_codes."""
        form = self.integer_form(window)
        assert form is not None, "no form holds its integers"
        return group_codes(self._read_piece(window)(range(len(window.rows))), form, self._groups)

    def load(self, window: Window) -> Values:
        """Read a region; see StoredTensor.load."""
        piece = self._read_piece(window)
        return lambda rows: piece(rows).values(self._groups)

    def _read_piece(self, window: Window) -> Callable[[range], Piece]:
        """Read a region; return a function of some of its rows that unpacks them."""
        assert window.columns is not None, "only matrices are stored so"
        outputs, inputs = window.rows, window.columns
        bits = self._scheme.bits
        needed = cover(inputs, self._per_word)
        words = read_matrix(self._words, outputs, needed.words)
        groups = self._groups.taken(inputs, self._count)
        scales = read_matrix(self._scales, outputs, groups)
        zeros = self._read_zeros(outputs, groups)

        def piece(rows: range) -> Piece:
            some = slice(rows.start, rows.stop)
            codes = unpack_columns(words[some], bits, needed.offset, len(inputs))
            return Piece(codes, scales[some], zeros[some], inputs)

        return piece

    def _read_zeros(self, outputs: range, groups: range) -> torch.Tensor:
        """Return what the integers are stored plus, uint8 [n, groups]."""
        bits = self._scheme.bits
        if self._zeros is None:
            return torch.full((len(outputs), len(groups)), 2 ** (bits - 1), dtype=torch.uint8)
        beside = cover(outputs, self._per_word)
        words = read_matrix(self._zeros, beside.words, groups)
        return unpack_rows(words, bits, beside.offset, len(outputs)).t()
