"""GPTQ: words of integers along the inputs, zero points packed along the outputs, scales per group.

qweight [K * bits / 32, N], qzeros [G, N * bits / 32], both int32, scales [G, N], and g_idx int32 [K], the
group of every input. In the first version of the format a zero point is stored less 1; a stored 15 (4 bits)
then means 0, as when its tools unpack it.
"""

from __future__ import annotations

from functools import cached_property

import torch

from splitserve.engine_core.checkpoint.quantization.schemes import GptqScheme
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


class GptqTensor(StoredTensor):
    """A matrix as GPTQ stores it.

    Raises:
        ModelLoadError: a tensor is missing, or has another dtype or shape than the config implies.
    """

    def __init__(self, places: Places, scheme: GptqScheme) -> None:
        outputs, inputs = places.shape
        self._per_word = 32 // scheme.bits
        if outputs % self._per_word or inputs % self._per_word:
            raise places.error(
                f"has shape {list(places.shape)}, whose sizes are no multiples of {self._per_word}"
            )
        self._scheme = scheme
        self._num_inputs = inputs
        self._count = count = num_groups(inputs, scheme.group_size)
        self._words = places.take("qweight", ("I32",), (inputs // self._per_word, outputs))
        self._zeros = places.take("qzeros", ("I32",), (count, outputs // self._per_word))
        self._scales = places.take("scales", FLOATS, (count, outputs))
        self._order = places.find("g_idx")
        if scheme.has_order or self._order is not None:
            self._order = places.take("g_idx", ("I32", "I64"), (inputs,))
        self._groups = Groups(scheme.group_size)
        parts = (self._words, self._scales, self._zeros, self._order)
        super().__init__(*(part for part in parts if part is not None))

    def check_values(self) -> None:
        """Check scales, and groups of inputs, which are kept if they are out of order."""
        check_finite(self._scales)
        if self._order is not None:
            self._groups = read_groups(self._order, self._scheme.group_size, self._count)

    def num_bytes(self, window: Window) -> int:
        """Bytes of the integers."""
        return len(window.rows) * -(-window.width * self._scheme.bits // 8)

    def integer_form(self, window: Window) -> GroupForm | None:
        """Groups by their numbers; there are no offsets if all zero points are half of the range."""
        integers = Integers(self._scheme.bits, not self._is_symmetric, self._scales)
        return integers.form(self._groups, window, self._num_inputs)

    def input_order(self, window: Window) -> torch.Tensor | None:
        """Inputs by their groups; see StoredTensor.input_order."""
        assert window.columns is not None, "only matrices are stored so"
        arranged = self._groups.arranged(window.columns)
        return None if arranged is None else arranged.inputs

    def load_codes(self, window: Window) -> GroupCodes:
        """Return the integers of a region; see StoredTensor.load_codes."""
        assert window.columns is not None, "only matrices are stored so"
        form = self.integer_form(window)
        assert form is not None, "no form holds its integers"
        outputs, inputs = window.rows, window.columns
        needed = cover(inputs, self._per_word)
        words = read_matrix(self._words, needed.words, outputs)
        codes = unpack_rows(words, self._scheme.bits, needed.offset, len(inputs))
        scales, zeros = self._read_groups(window)
        return group_codes(Piece(codes, scales, zeros, inputs), form, self._groups)

    @cached_property
    def _is_symmetric(self) -> bool:
        """Whether all zero points are half of the range; in the first version of the format less 1."""
        bits = self._scheme.bits
        stored = sum((2 ** (bits - 1) - self._scheme.zero_offset) << shift for shift in range(0, 32, bits))
        expected = torch.tensor(stored - 2**32 if stored >= 2**31 else stored, dtype=torch.int32)
        return bool((read_whole(self._zeros) == expected).all())

    def _read_groups(self, window: Window) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scales and zero points of the groups that a region needs, [n, groups]."""
        assert window.columns is not None, "only matrices are stored so"
        groups = self._groups.taken(window.columns, self._count)
        scales = read_matrix(self._scales, groups, window.rows).t()
        beside = cover(window.rows, self._per_word)
        words = read_matrix(self._zeros, groups, beside.words)
        bits = self._scheme.bits
        # Wraps around at the largest integer.
        stored = unpack_columns(words, bits, beside.offset, len(window.rows)) + self._scheme.zero_offset
        return scales, (stored & (2**bits - 1)).t()

    def load(self, window: Window) -> Values:
        """Read a region; see StoredTensor.load."""
        assert window.columns is not None, "only matrices are stored so"
        outputs, inputs = window.rows, window.columns
        bits = self._scheme.bits
        needed = cover(inputs, self._per_word)
        words = read_matrix(self._words, needed.words, outputs)
        scales, zeros = self._read_groups(window)

        def values(rows: range) -> torch.Tensor:
            some = slice(rows.start, rows.stop)
            codes = unpack_rows(words[:, some], bits, needed.offset, len(inputs))
            return Piece(codes, scales[some], zeros[some], inputs).values(self._groups)

        return values
