"""A weight of codes of 4 or 8 bits in a GPU's memory, with their scales."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from splitserve.worker.ops.codes.layouts import PANEL_ROWS, Places, layout_of
from splitserve.worker.ops.codes.operations import CodedTensors
from splitserve.worker.ops.quantization import (
    GROUP_COLUMNS,
    GroupCodes,
    GroupForm,
    KeptForm,
    Quantized,
    quantize,
)

if TYPE_CHECKING:
    from torch import Tensor

    from splitserve.worker.ops.products import Products


class CodedWeight:
    """A matrix [N, K] in panels of 32 rows; csrc/cuda/coded_linear.h describes the layout.

    The matrices of several experts, of N / E rows each, may lie below each other in it; each begins with a
    panel of its own. It is filled piece by piece, in whole rows.

    Args:
        shape: (N, K), each at least 1.
        form: in which it is kept; not "plain".
        device: where it lives.
        num_experts: E; N is a multiple of it.

    Attributes:
        shape: (N, K).
        num_experts: as given.
        group: inputs that share a scale; 0: all.
        data, scales: see CodedTensors.

    Raises:
        RuntimeError: there is not enough memory.
    """

    __slots__ = ("_form", "_layout", "data", "group", "num_experts", "scales", "shape")

    def __init__(
        self, shape: tuple[int, int], form: KeptForm, device: torch.device, num_experts: int = 1
    ) -> None:
        assert shape[0] % num_experts == 0, "experts have the same sizes"
        self.shape = shape
        self.num_experts = num_experts
        self._form = form
        self._layout = layout_of(form)
        self.group = _group_of(form)
        codes, scales = _shapes(shape, form, num_experts)
        self.data = torch.zeros(codes, dtype=self._layout.dtype, device=device)
        self.scales = torch.zeros(scales, device=device)

    @classmethod
    def of(cls, matrix: Tensor, form: KeptForm, device: torch.device) -> CodedWeight:
        """Quantise a whole matrix [N, K]."""
        weight = cls((matrix.shape[0], matrix.shape[1]), form, device)
        weight.fill(matrix)
        return weight

    @property
    def num_bytes(self) -> int:
        """Memory it takes."""
        return self.data.nbytes + self.scales.nbytes

    @property
    def tensors(self) -> CodedTensors:
        """What the kernels take."""
        cols = self.shape[0] // self.num_experts
        takes_int8 = self._form == "w8a8"
        return CodedTensors(self.data, self.scales, self.num_experts, cols, self.group, takes_int8)

    def multiply(
        self, ops: Products, out: Tensor, x: Tensor, bias: Tensor | None, starts: Tensor | None = None
    ) -> None:
        """See MultipliedMatrix.multiply.

        Of many rows the product is torch's with the weight written out in the dtype of x, to which it is
        rounded then; activations that become int8 and experts have our kernels for any number.
        """
        if len(x) > ops.max_coded_rows and starts is None and self._form != "w8a8":
            dense = x.new_empty(self.shape)
            ops.coded.dense(dense, self.tensors)
            ops.dense_linear(out, x, dense, bias)
            return
        ops.coded.linear(out, x, self.tensors, bias, starts)

    def look_up(self, ops: Products, out: Tensor, token_ids: Tensor) -> None:
        """See MultipliedMatrix.look_up."""
        ops.coded.embedding(out, token_ids, self.tensors)

    def fill(
        self, source: Tensor, first_row: int = 0, first_column: int = 0, kept: range | None = None
    ) -> None:
        """Quantise some whole rows; see Matrix.fill.

        Raises:
            ValueError: they do not fit.
        """
        assert not isinstance(self._form, GroupForm), "it holds the integers of a file"
        num_kept = source.shape[1] if kept is None else len(kept)
        if first_column != 0 or num_kept != self.shape[1]:
            raise ValueError(f"source: expected whole rows of {self.shape[1]} to quantize")
        self.fill_codes(quantize(source.cpu(), self._form, kept), first_row)

    def fill_codes(self, quantized: Quantized, first_row: int = 0) -> None:
        """Write whole rows as integers, in the form that it has.

        Args:
            quantized: as `quantize` returns them for its form.
            first_row: row of the matrix where the first one belongs.

        Raises:
            ValueError: they do not fit.
        """
        codes, scales = quantized
        self.fill_group_codes(GroupCodes(codes, scales.view(len(codes), -1).float(), None), first_row)

    def fill_group_codes(self, group_codes: GroupCodes, first_row: int = 0) -> None:
        """Write whole rows as integers with scales of groups, or of rows if it has no groups.

        Args:
            group_codes: of n rows; the scales of a row may be for all of them.
            first_row: row of the matrix where the first one belongs.

        Raises:
            ValueError: they do not fit.
        """
        codes, scales, offsets, _ = group_codes
        last_row = first_row + len(codes)
        if not 0 <= first_row <= last_row <= self.shape[0] or codes.shape[1] != self.shape[1]:
            raise ValueError(f"codes: {tuple(codes.shape)} from row {first_row} do not fit {self.shape}")
        if offsets is None and self._layout.zero:
            codes = codes + self._layout.zero
        device = self.data.device
        places = self._places(torch.arange(first_row, last_row, device=device))
        self._layout.write(self.data, places, codes.to(device))
        if not self.group:
            self.scales[first_row:last_row] = scales.view(-1).to(device)
            return
        for kind, values in enumerate((scales, offsets)):
            if values is not None:
                self.scales[places.panels, : values.shape[1], kind, places.scales] = values.to(device)

    def _places(self, rows: Tensor) -> Places:
        """Return where rows of the matrix are; those of one call belong to one expert."""
        expert_rows = self.shape[0] // self.num_experts
        expert = int(rows[0]) // expert_rows if len(rows) else 0
        first_panel = expert * (len(self.data) // self.num_experts)
        return Places.of(rows - expert * expert_rows, first_panel)


def coded_bytes(shape: tuple[int, int], form: KeptForm, num_experts: int = 1) -> int:
    """Return what a weight of codes takes."""
    codes, scales = _shapes(shape, form, num_experts)
    return math.prod(codes) + math.prod(scales) * torch.float32.itemsize


def _group_of(form: KeptForm) -> int:
    if isinstance(form, GroupForm):
        return form.group
    return GROUP_COLUMNS if form == "int4" else 0


def _shapes(
    shape: tuple[int, int], form: KeptForm, num_experts: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of codes and scales."""
    layout, group = layout_of(form), _group_of(form)
    num_panels = num_experts * -(-(shape[0] // num_experts) // PANEL_ROWS)
    num_steps = layout.num_steps(shape[1])
    codes = (num_panels, num_steps, layout.step_bytes)
    if not group:
        return codes, (shape[0],)
    kinds = 2 if isinstance(form, GroupForm) and form.has_offsets else 1
    # Kernels read the scales of whole steps.
    return codes, (num_panels, -(-num_steps * layout.step_inputs // group), kinds, PANEL_ROWS)
