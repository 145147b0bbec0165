"""How the codes of a weight lie in a GPU's memory: as csrc/cuda/coded_linear.h describes it.

A layout writes rows of codes into panels of 32 outputs. An output is the c-th of the 8 of a tile, of which a
panel has four; a step has 4 lanes' inputs for each of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch

from splitserve.worker.ops.quantization import CODE_ZEROS, GroupForm, KeptForm

PANEL_ROWS = 32
_TILE = 8
_LANES = 4


class Places(NamedTuple):
    """Where some outputs are, each int64 [n].

    Attributes:
        panels: of the weight.
        tiles: within the panel.
        columns: within the tile.
    """

    panels: torch.Tensor
    tiles: torch.Tensor
    columns: torch.Tensor

    @classmethod
    def of(cls, rows: torch.Tensor, first_panel: int) -> Places:
        """Return those of the rows of a matrix that begins with this panel."""
        return cls(first_panel + rows // PANEL_ROWS, rows % PANEL_ROWS // _TILE, rows % _TILE)

    @property
    def scales(self) -> torch.Tensor:
        """Places among the 32 scales of a group: those of a column of every tile follow each other."""
        return self.columns * (PANEL_ROWS // _TILE) + self.tiles


class CodeLayout(ABC):
    """A layout of codes.

    Attributes:
        step_inputs: inputs of a step.
        word_inputs: of 4 bytes of activations.
        step_bytes: of a panel.
        dtype: of the tensor that holds them.
        zero: what codes without offsets are stored plus.
    """

    step_inputs: int
    word_inputs: int = 2
    step_bytes: int
    dtype: torch.dtype
    zero: int = 0

    def num_steps(self, num_inputs: int) -> int:
        """Return how many steps a panel has."""
        return -(-num_inputs // self.step_inputs)

    def write(self, data: torch.Tensor, places: Places, codes: torch.Tensor) -> None:
        """Write whole rows.

        Args:
            data: [panels, steps, step_bytes] of `dtype`.
            places: of n rows, on the device of data.
            codes: int8 or uint8 [n, K], on that device; from 0 to 15 if they have 4 bits.
        """
        num_rows, num_inputs = codes.shape
        padded = torch.zeros(
            num_rows, data.shape[1] * self.step_inputs, dtype=torch.uint8, device=data.device
        )
        padded[:, :num_inputs] = codes.view(torch.uint8)
        # A lane has every fourth word of a row of activations.
        words = padded.view(num_rows, data.shape[1], -1, _LANES, self.word_inputs).transpose(2, 3)
        self._write(data.view(torch.uint8), places, words.flatten(3))

    @abstractmethod
    def _write(self, data: torch.Tensor, places: Places, parts: torch.Tensor) -> None:
        """Write uint8 [n, S, 4, inputs of a lane]."""


class NibbleLayout(CodeLayout):
    """Codes of 4 bits: 8 of a lane in a word, those of inputs 0, 2, 4, 6 in its lower half."""

    step_inputs, step_bytes, dtype, zero = 32, 512, torch.uint8, CODE_ZEROS[4]

    def _write(self, data: torch.Tensor, places: Places, parts: torch.Tensor) -> None:
        # Bytes of a word: inputs 0 and 2, 4 and 6, 1 and 3, 5 and 7.
        pairs = parts[..., [0, 4, 1, 5]] | parts[..., [2, 6, 3, 7]] << 4
        target = data.view(len(data), -1, _TILE, _LANES, 4, 4)
        target[places.panels, :, places.columns, :, places.tiles] = pairs


class ByteLayout(CodeLayout):
    """Codes of 8 bits, or of 6: 4 of a lane in a word, in the order 0, 2, 1, 3.

    Args:
        dtype: int8, or uint8 for E4M3.
    """

    step_inputs, step_bytes = 32, 1024

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def _write(self, data: torch.Tensor, places: Places, parts: torch.Tensor) -> None:
        target = data.view(len(data), -1, 2, _TILE, _LANES, 2, 8)
        own = parts[..., [0, 2, 1, 3, 4, 6, 5, 7]]
        target[places.panels, :, places.tiles // 2, places.columns, :, places.tiles % 2] = own


class DotLayout(CodeLayout):
    """Codes of 8 bits for activations of 8 bits: 16 of a lane, in order."""

    step_inputs, word_inputs, step_bytes, dtype = 64, 4, 2048, torch.int8

    def _write(self, data: torch.Tensor, places: Places, parts: torch.Tensor) -> None:
        target = data.view(len(data), -1, 4, _TILE, _LANES, 16)
        target[places.panels, :, places.tiles, places.columns] = parts


def layout_of(form: KeptForm) -> CodeLayout:
    """Return the layout of a form that is not "plain"."""
    if isinstance(form, GroupForm):
        if form.bits == 4:
            return NibbleLayout()
        return ByteLayout(torch.uint8 if form.is_float else torch.int8)
    match form:
        case "int4":
            return NibbleLayout()
        case "int8":
            return ByteLayout(torch.int8)
        case "w8a8":
            return DotLayout()
    raise AssertionError(f"no kernel of a GPU reads {form}")
