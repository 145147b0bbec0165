"""How weights become small integers with scales while they are loaded: symmetric, rounded to nearest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch

from splitserve.worker._native import load_library

_lib = load_library("splitserve_cpu")

GROUP_COLUMNS = 32

WeightForm = Literal["plain", "int8", "int4", "mxfp4", "w8a8"]

# Columns whose scales are integers of 8 bits times one number, their unit, where they are not floats.
UNIT_COLUMNS = 256

# Stored codes without offsets are those plus this, by their bits.
CODE_ZEROS = {4: 8, 6: 32, 8: 0}


class GroupForm(NamedTuple):
    """Integers of a file as they are, with scales of groups of neighbours along K: code * scale + offset.

    Attributes:
        bits: of a code, 4, 6 or 8.
        group: columns that share a scale: 16, 32, 64, 128, or 0 for all, which is "int8" to the kernels.
        has_offsets: groups have offsets, too; always False where a group has all columns.
        is_float: codes are E4M3 (FP8) instead of integers, without offsets.
        takes_int8: activations are to be int8, too: "w8a8" where a group has all columns; of codes of 4 bits
            those of each group, by kernels that make them integers at all. No others in groups.
        has_units: scales and offsets are integers of 8 bits, each times a number of 256 columns; only codes
            of 4 and 6 bits.
    """

    bits: int
    group: int
    has_offsets: bool
    is_float: bool = False
    takes_int8: bool = False
    has_units: bool = False

    def joined(self, other: GroupForm) -> GroupForm:
        """Return the smallest form that holds what either of two holds; both are floats, or none is."""
        group = min((size for size in (self.group, other.group) if size), default=0)
        bits = max(self.bits, other.bits)
        return GroupForm(
            bits,
            group,
            self.has_offsets or other.has_offsets,
            self.is_float,
            self.takes_int8 and other.takes_int8,
            self.has_units and other.has_units and bits < 8,
        )

    @property
    def kept(self) -> KeptForm:
        """Return what a weight calls it."""
        if self.group:
            return self
        return "w8a8" if self.takes_int8 else "int8"


KeptForm = WeightForm | GroupForm
"""How a matrix is kept in memory."""


class WeightForms(NamedTuple):
    """In what form the matrices of a model are kept.

    Attributes:
        linear: those of attention and MLP.
        head: the output head, and with it an embedding tied to it.
    """

    linear: WeightForm = "plain"
    head: WeightForm = "plain"


# The head stays in int8: 4 bits cost more there than in any other matrix, and its rows must be looked up
# where it is the embedding too.
FORMS = {
    "none": WeightForms(),
    "int8": WeightForms("int8", "int8"),
    "int4": WeightForms("int4", "int8"),
    "w8a8": WeightForms("w8a8", "int8"),
}


class Quantized(NamedTuple):
    """A matrix as integers.

    Attributes:
        codes: int8 [n, K].
        scales: float32 [n] of a row's values, or [n, ceil(K / 32)] of a group's, bfloat16 or, for MXFP4, the
            exponents of float32 powers of two in uint8.
    """

    codes: torch.Tensor
    scales: torch.Tensor


class ScaleUnits(NamedTuple):
    """Numbers that scales of groups are integers of 8 bits times.

    Attributes:
        scales: float32 [n, ceil(K / 256)], of no more than 16 digits, so that products are exact.
        offsets: like scales, of the offsets; None if there are none.
    """

    scales: torch.Tensor
    offsets: torch.Tensor | None


class GroupCodes(NamedTuple):
    """A matrix as integers in groups: code * scale + offset.

    Attributes:
        codes: int8 [n, K], of FP8 the bytes as uint8; those of 4 and 6 bits are from 0 on if there are
            offsets, else from -8 or -32 on.
        scales: float32 [n, G] of groups of columns, of which the last one may be smaller.
        offsets: like scales; None for zeros.
        units: of scales and offsets, if they have any.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None
    units: ScaleUnits | None = None

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> GroupCodes:
        """Return what a function makes of each tensor; it does the same to the rows of all."""
        offsets, units = self.offsets, self.units
        if units is not None:
            units = ScaleUnits(change(units.scales), None if units.offsets is None else change(units.offsets))
        return GroupCodes(
            change(self.codes), change(self.scales), None if offsets is None else change(offsets), units
        )

    def converted(self, own: GroupForm, form: GroupForm) -> GroupCodes:
        """Return the same numbers in another form.

        Args:
            own: that they have.
            form: own joined with others.
        """
        codes, scales, offsets, units = self
        if form.has_offsets and offsets is None:
            zero = 0 if form.bits == 8 else CODE_ZEROS[own.bits]
            codes, offsets = codes + zero, -zero * scales
            units = None if units is None else ScaleUnits(units.scales, -zero * units.scales)
        if own.group == form.group:
            return GroupCodes(codes, scales, offsets, units)
        count = -(-codes.shape[1] // form.group)
        times = own.group // form.group or count
        return GroupCodes(
            codes,
            scales.repeat_interleave(times, dim=1)[:, :count],
            None if offsets is None else offsets.repeat_interleave(times, dim=1)[:, :count],
            units,
        )


def quantize(rows: torch.Tensor, form: WeightForm, kept: range | None = None) -> Quantized:
    """Round whole rows [n, K] to a form.

    Args:
        rows: on the CPU, of any strides and dtype.
        form: not "plain".
        kept: columns that are kept, for int8 and w8a8, where the others still count for the scales; None for
            all.
    """
    if form in ("int8", "w8a8"):
        codes, scales = quantize_int8(rows)
        return Quantized(codes if kept is None else codes[:, kept.start : kept.stop], scales)
    return quantize_int4(rows) if form == "int4" else quantize_mxfp4(rows)


def quantize_int8(rows: torch.Tensor) -> Quantized:
    """Round rows [n, K] to multiples of their largest magnitude over 127; a row with a NaN has scale NaN."""
    codes = torch.empty(rows.shape, dtype=torch.int8)
    scales = torch.empty(rows.shape[0])
    _lib.quantize_int8(codes, scales, _readable(rows))
    return Quantized(codes, scales)


def quantize_int4(rows: torch.Tensor) -> Quantized:
    """Round rows [n, K] to multiples of a scale per group of 32 columns, from -8 to 7 times it.

    The value of the largest magnitude in a group becomes -8 scales, so a scale has the opposite sign of that
    value and none of the 16 codes is wasted (the rule of llama.cpp's q4_0). Codes are chosen for the scale as
    it is kept, in bfloat16. A group with a NaN gets the scale NaN.
    """
    codes = torch.empty(rows.shape, dtype=torch.int8)
    scales = torch.empty(rows.shape[0], -(-rows.shape[1] // GROUP_COLUMNS), dtype=torch.bfloat16)
    _lib.quantize_int4(codes, scales, _readable(rows))
    return Quantized(codes, scales)


def quantize_mxfp4(rows: torch.Tensor) -> Quantized:
    """Round rows [n, K] to MXFP4: 0, 0.5, 1, 1.5, 2, 3, 4 or 6 times a power of two per 32 columns.

    Rows that hold such numbers stay as they are. A group with a NaN or an infinite number becomes NaN.
    """
    codes = torch.empty(rows.shape, dtype=torch.int8)
    scales = torch.empty(rows.shape[0], -(-rows.shape[1] // GROUP_COLUMNS), dtype=torch.uint8)
    _lib.quantize_mxfp4(codes, scales, _readable(rows))
    return Quantized(codes, scales)


def dequantize_mxfp4(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the numbers, bfloat16 [n, K], of rows of MXFP4 as checkpoints hold them.

    Args:
        codes: uint8 [n, K / 2], two per byte, the lower one first; contiguous rows.
        scales: uint8 [n, K / 32], exponents of powers of two plus 127; 255 is NaN.
    """
    out = torch.empty(codes.shape[0], 2 * codes.shape[1], dtype=torch.bfloat16)
    _lib.dequantize_mxfp4(out, codes, scales)
    return out


def _readable(rows: torch.Tensor) -> torch.Tensor:
    return (rows.float() if rows.dtype == torch.float16 else rows).contiguous()
