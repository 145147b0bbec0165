"""AWQ's GEMM layout: words of 8 outputs in an order of its own, and scales and zero points per group.

qweight [K, N / 8] and qzeros [G, N / 8], int32, scales [G, N]. The 4 bits of output o of a word are those at
4 * (0, 4, 1, 5, 2, 6, 3, 7)[o].
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from splitserve.engine_core.checkpoint.quantization.schemes import AwqScheme
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
)
from splitserve.worker.weights.formats.words import cover, unpack
from splitserve.worker.weights.reading import read_matrix

_PER_WORD = 8


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
        self._num_inputs = inputs
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

    def integer_form(self, window: Window) -> GroupForm | None:
        """Groups with offsets, since all have zero points."""
        return Integers(4, True, self._scales).form(self._groups, window, self._num_inputs)

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
        groups = self._groups.taken(inputs, self._count)
        needed = cover(outputs, _PER_WORD)
        words = read_matrix(self._words, inputs, needed.words)
        scales = read_matrix(self._scales, groups, outputs).t()
        zero_words = read_matrix(self._zeros, groups, needed.words)

        def piece(rows: range) -> Piece:
            places = range(needed.offset + rows.start, needed.offset + rows.stop)
            some = scales[rows.start : rows.stop]
            return Piece(_turned(words, places), some, _turned(zero_words, places), inputs)

        return piece


def _turned(words: torch.Tensor, outputs: range) -> torch.Tensor:
    """Return some of the outputs in words [rows, W], as uint8 [outputs, rows]."""
    needed = cover(outputs, _PER_WORD)
    some = words[:, needed.words.start : needed.words.stop]
    # Of the three bits of a place in the word the first is the last one of the output's number.
    places = unpack(some, 4).view(*some.shape, 2, 2, 2)
    turned = places.permute(1, 3, 4, 2, 0).reshape(-1, words.shape[0])
    return turned[needed.offset : needed.offset + len(outputs)]
