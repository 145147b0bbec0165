"""The weight of a linear layer in the order, and in the form, in which the kernels read it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from splitserve.worker._native import load_library
from splitserve.worker.ops.quantization import (
    CODE_ZEROS,
    GROUP_COLUMNS,
    UNIT_COLUMNS,
    GroupCodes,
    GroupForm,
    KeptForm,
    Quantized,
    WeightForm,
    quantize,
)
from splitserve.worker.pages import zero_pages

_lib = load_library("splitserve_cpu")

_PANEL_ROWS = 32
# Columns that a step of products of int8 adds up, and to whose multiples they are padded.
_DOT_PAIR, _DOT_COLUMNS = 4, 64
_PER_ROW = ("int8", "w8a8")
_GROUP_BYTES = {
    "int4": _PANEL_ROWS * (2 + GROUP_COLUMNS // 2),
    "mxfp4": _PANEL_ROWS * (1 + GROUP_COLUMNS // 2),
}


class PackedWeight:
    """A matrix [N, K] in panels of 32 rows; csrc/cpu/packed.h describes the layout.

    The matrices of several experts, of N / E rows each, may lie below each other in it; each begins with a
    panel of its own.

    It is made of zeros and filled piece by piece, so a checkpoint can be packed while it is read.

    Args:
        shape: (N, K), each at least 1.
        dtype: bfloat16 or float32, that of the activations it multiplies; bfloat16 if it is quantised.
        form: "plain" keeps the values in dtype, "int8" with a scale per row, "w8a8" likewise to multiply
            activations that become int8, "int4" and "mxfp4" with a scale per 32 columns of a row, a GroupForm
            the integers that fill_group_codes() writes.
        num_experts: E; N is a multiple of it.

    Attributes:
        shape: (N, K).
        dtype: of the activations.
        form, num_experts: as given.
        data: [E * ceil(N / E / 32), ceil(K / pair), 32, pair], pair 1 for float32, 2 for bfloat16 and int8,
            4 for w8a8 with K a multiple of 64; for codes of 4 and 6 bits uint8 [E * ceil(N / E / 32),
            ceil(K / 32), 512 or 768, or 576 or 544 with the scales of int4 or mxfp4], int8 for a GroupForm
            that takes activations as int8. FP8 is uint8 in the place of int8.
        scales: float32 [N] for int8 and w8a8; for groups [E * ceil(N / E / 32), groups, 1 or 2, 32], or with
            units uint8 [E * ceil(N / E / 32), ceil(K / 256), 1 or 2, 128 + 32 * groups of a unit]; else None.

    Raises:
        OSError: there is not enough address space.
    """

    __slots__ = ("data", "dtype", "form", "num_experts", "scales", "shape")

    def __init__(
        self, shape: tuple[int, int], dtype: torch.dtype, form: KeptForm = "plain", num_experts: int = 1
    ) -> None:
        assert form == "plain" or dtype == torch.bfloat16, "quantised weights multiply bfloat16"
        assert shape[0] % num_experts == 0, "experts have the same sizes"
        self.shape = shape
        self.dtype = dtype
        self.form = form
        self.num_experts = num_experts
        self.data = _panels(num_experts, (shape[0] // num_experts, shape[1]), dtype, form)
        self.scales = torch.zeros(shape[0]) if form in _PER_ROW else None
        if isinstance(form, GroupForm):
            assert form.group, "one group is int8"
            self.scales = _group_scales(len(self.data), shape[1], form)

    @classmethod
    def of(cls, matrix: torch.Tensor, form: WeightForm = "plain") -> PackedWeight:
        """Pack a whole matrix [N, K]."""
        return cls.of_experts([matrix], form)

    @classmethod
    def of_experts(cls, matrices: Sequence[torch.Tensor], form: WeightForm = "plain") -> PackedWeight:
        """Pack the whole matrices of experts, [N / E, K] each."""
        rows, columns = matrices[0].shape
        weight = cls((len(matrices) * rows, columns), matrices[0].dtype, form, len(matrices))
        for expert, matrix in enumerate(matrices):
            weight.fill(matrix, expert * rows)
        return weight

    @property
    def num_bytes(self) -> int:
        """Memory it takes."""
        return self.data.nbytes + (self.scales.nbytes if self.scales is not None else 0)

    def fill(
        self,
        source: torch.Tensor,
        first_row: int = 0,
        first_column: int = 0,
        kept: range | None = None,
    ) -> None:
        """Write a rectangle of the matrix, or of an expert's; whole rows if they are quantised.

        Args:
            source: [n, k], of any strides; converted to the weight's dtype, or quantised.
            first_row: row of the matrix where its first element belongs.
            first_column: its column.
            kept: columns of source that belong to the matrix, for int8 and w8a8, where the others still count
                for the scales; None for all.

        Raises:
            ValueError: it does not fit.
        """
        if self.form == "plain":
            self._pack(source.to(self.dtype), first_row, first_column)
            return
        assert not isinstance(self.form, GroupForm), "it holds the integers of a file"
        num_kept = source.shape[1] if kept is None else len(kept)
        if first_column != 0 or num_kept != self.shape[1] or (kept is not None and self.form not in _PER_ROW):
            raise ValueError(f"source: expected whole rows of {self.shape[1]} to quantize")
        self.fill_codes(quantize(source, self.form, kept), first_row)

    def fill_codes(self, quantized: Quantized, first_row: int = 0) -> None:
        """Write whole rows as integers, in the form that it has.

        Args:
            quantized: codes int8 [n, K], and scales as quantize_int8 and quantize_int4 return them.
            first_row: row of the matrix where the first one belongs.

        Raises:
            ValueError: they do not fit.
        """
        codes, scales = quantized
        if self.scales is None:
            data, shape, row = self._expert_of(first_row)
            _lib.pack_codes(data, codes, scales, *shape, row)
        else:
            # Those of w8a8 are stored plus 128.
            self._pack(codes if self.form == "int8" else codes ^ -128, first_row, 0)
            self.scales[first_row : first_row + len(scales)] = scales

    def fill_group_codes(self, group_codes: GroupCodes, first_row: int = 0) -> None:
        """Write whole rows as integers of a file, in the form that it has: a GroupForm, int8 or w8a8.

        Args:
            group_codes: of n rows.
            first_row: row of the matrix where the first one belongs.

        Raises:
            ValueError: they do not fit.
        """
        codes, scales, offsets, units = group_codes
        if not isinstance(self.form, GroupForm):
            self.fill_codes(Quantized(codes, scales.view(-1)), first_row)
            return
        assert (offsets is not None) == self.form.has_offsets, "codes are converted to the form"
        if self.form.bits == 8:
            self._pack(codes, first_row, 0)
        else:
            data, shape, row = self._expert_of(first_row)
            stored = codes + CODE_ZEROS[self.form.bits] if offsets is None else codes
            _lib.pack_codes(data, stored, None, *shape, row)
        if not self.form.has_units:
            self._fill_scales(first_row, scales, offsets)
            return
        assert units is not None, "codes are converted to the form"
        self._fill_units(first_row, 0, units.scales, scales)
        if offsets is not None:
            assert units.offsets is not None, "offsets have units if scales have them"
            self._fill_units(first_row, 1, units.offsets, offsets)

    def _fill_scales(self, first_row: int, scales: torch.Tensor, offsets: torch.Tensor | None) -> None:
        assert self.scales is not None, "a GroupForm has scales"
        panels, columns = self._places(first_row, len(scales))
        self.scales[panels, :, 0, columns] = scales
        if offsets is not None:
            self.scales[panels, :, 1, columns] = offsets

    def _fill_units(self, first_row: int, kind: int, units: torch.Tensor, values: torch.Tensor) -> None:
        """Write scales or offsets [n, G] as integers, and what they are multiplied with [n, U]."""
        assert self.scales is not None, "a GroupForm has scales"
        panels, columns = self._places(first_row, len(values))
        numbers = self.scales[..., : 4 * _PANEL_ROWS].view(torch.float32)
        numbers[panels, :, kind, columns] = units
        kept = self.scales[..., 4 * _PANEL_ROWS :].view(torch.int8)
        kept = kept.view(*kept.shape[:3], -1, _PANEL_ROWS)
        count = kept.shape[3]
        padded = F.pad(values, (0, units.shape[1] * count - values.shape[1]))
        padded = padded.view(len(values), -1, count)
        # The quotients are integers, but where a unit is zero, which makes products zero, or no number.
        kept[panels, :, kind, :, columns] = (padded / units[:, :, None]).nan_to_num(0).to(torch.int8)

    def _places(self, first_row: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the panels of some rows of an expert, and their columns there, int64 [count]."""
        expert_rows, num_panels = self.shape[0] // self.num_experts, len(self.data) // self.num_experts
        expert, row = divmod(first_row, expert_rows)
        rows = torch.arange(row, row + count)
        return expert * num_panels + rows // _PANEL_ROWS, rows % _PANEL_ROWS

    def _pack(self, source: torch.Tensor, first_row: int, first_column: int) -> None:
        """Write a rectangle [n, k] of any strides, in the dtype of `data`."""
        data, shape, row = self._expert_of(first_row)
        _lib.pack_weight(data, source, *shape, row, first_column)

    def _expert_of(self, row: int) -> tuple[torch.Tensor, tuple[int, int], int]:
        """Return panels and shape of the expert that a row belongs to, and its row there."""
        expert_rows, num_panels = self.shape[0] // self.num_experts, len(self.data) // self.num_experts
        # Nothing lies before the first row or behind the last one, which is for the kernels to say.
        expert = max(0, min(row // expert_rows, self.num_experts - 1))
        panels = self.data[expert * num_panels : (expert + 1) * num_panels]
        return panels, (expert_rows, self.shape[1]), row - expert * expert_rows


def _panels(num_experts: int, shape: tuple[int, int], dtype: torch.dtype, form: KeptForm) -> torch.Tensor:
    rows, columns = shape
    num_panels = num_experts * -(-rows // _PANEL_ROWS)
    num_bytes = _code_bytes(form)
    if num_bytes:
        size = (num_panels, -(-columns // GROUP_COLUMNS), num_bytes)
        takes_int8 = isinstance(form, GroupForm) and form.takes_int8
        return zero_pages(size, torch.int8 if takes_int8 else torch.uint8, huge=True)
    if form == "w8a8":
        steps = -(-columns // _DOT_COLUMNS) * _DOT_COLUMNS // _DOT_PAIR
        return zero_pages((num_panels, steps, _PANEL_ROWS, _DOT_PAIR), torch.int8, huge=True)
    pair = 4 // dtype.itemsize
    kept = dtype if form == "plain" else torch.int8
    if isinstance(form, GroupForm) and form.is_float:
        kept = torch.uint8
    return zero_pages((num_panels, -(-columns // pair), _PANEL_ROWS, pair), kept, huge=True)


def _group_scales(num_panels: int, num_columns: int, form: GroupForm) -> torch.Tensor:
    kinds = 2 if form.has_offsets else 1
    if not form.has_units:
        size = (num_panels, -(-num_columns // form.group), kinds, _PANEL_ROWS)
        return zero_pages(size, torch.float32, huge=True)
    num_bytes = _PANEL_ROWS * (4 + UNIT_COLUMNS // form.group)
    size = (num_panels, -(-num_columns // UNIT_COLUMNS), kinds, num_bytes)
    return zero_pages(size, torch.uint8, huge=True)


def _code_bytes(form: KeptForm) -> int:
    """Bytes of 32 x 32 codes of 4 or 6 bits, with the scales between them; 0 for other forms."""
    if isinstance(form, GroupForm):
        return _PANEL_ROWS * GROUP_COLUMNS * form.bits // 8 if form.bits < 8 else 0
    return _GROUP_BYTES.get(form, 0)
