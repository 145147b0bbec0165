"""GPTQ: words of integers along the inputs, zero points packed along the outputs, scales per group.

qweight [K * bits / 32, N], qzeros [G, N * bits / 32], both int32, scales [G, N], and g_idx int32 [K], the
group of every input. In the first version of the format a zero point is stored less 1; a stored 15 (4 bits)
then means 0, as when its tools unpack it.
"""

from __future__ import annotations

import torch

from splitserve.engine_core.checkpoint.quantization.schemes import GptqScheme
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
            order = read_order(self._order, self._count)
            size = self._scheme.group_size or len(order)
            if not torch.equal(order, torch.arange(len(order)) // size):
                self._groups = Groups(self._scheme.group_size, order)

    def num_bytes(self, window: Window) -> int:
        """Bytes of the integers."""
        return len(window.rows) * -(-window.width * self._scheme.bits // 8)

    def integer_form(self, window: Window) -> IntegerForm:
        """int4 for whole groups of 32 inputs in order whose zero points are all 8."""
        is_fit = self._scheme.bits == 4 and self._groups.order is None and self._is_symmetric()
        return four_bits(is_fit, self._groups, window, self._scales)

    def load_codes(self, window: Window) -> Quantized:
        """Return the integers of a region less 8, and a scale per 32 inputs."""
        assert window.columns is not None, "only matrices are stored so"
        outputs, inputs = window.rows, window.columns
        needed = cover(inputs, self._per_word)
        codes = unpack_rows(read_matrix(self._words, needed.words, outputs), 4, needed.offset, len(inputs))
        scales = read_matrix(self._scales, self._groups.taken(inputs, self._count), outputs).t()
        # As unsigned bytes the difference wraps around to the bits of the negative number.
        return Quantized((codes - 8).view(torch.int8), self._groups.per_kept_group(scales, inputs))

    def _is_symmetric(self) -> bool:
        """Whether all zero points are 8; in the first version of the format they are stored less 1."""
        stored = sum((8 - self._scheme.zero_offset) << shift for shift in range(0, 32, 4))
        expected = torch.tensor(stored - 2**32 if stored >= 2**31 else stored, dtype=torch.int32)
        return bool((read_whole(self._zeros) == expected).all())

    def load(self, window: Window) -> Values:
        """Read a region; see StoredTensor.load."""
        assert window.columns is not None, "only matrices are stored so"
        outputs, inputs = window.rows, window.columns
        bits = self._scheme.bits
        needed = cover(inputs, self._per_word)
        words = read_matrix(self._words, needed.words, outputs)
        groups = self._groups.taken(inputs, self._count)
        scales = read_matrix(self._scales, groups, outputs).t()
        beside = cover(outputs, self._per_word)
        zero_words = read_matrix(self._zeros, groups, beside.words)
        # Wraps around at the largest integer.
        stored = unpack_columns(zero_words, bits, beside.offset, len(outputs)) + self._scheme.zero_offset
        zeros = (stored & (2**bits - 1)).t()

        def values(rows: range) -> torch.Tensor:
            some = slice(rows.start, rows.stop)
            codes = unpack_rows(words[:, some], bits, needed.offset, len(inputs))
            return Piece(codes, scales[some], zeros[some], inputs).values(self._groups)

        return values
