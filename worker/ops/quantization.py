"""How weights become small integers with scales while they are loaded: symmetric, rounded to nearest."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from splitserve.worker._native import load_library

_lib = load_library("splitserve_cpu")

GROUP_COLUMNS = 32

WeightForm = Literal["plain", "int8", "int4", "mxfp4", "w8a8"]

# Stored codes of 4 bits without offsets are those plus this.
INT4_ZERO = 8


class GroupForm(NamedTuple):
    """Integers of a file as they are, with scales of groups of neighbours along K: code * scale + offset.

    Attributes:
        bits: of a code, 4 or 8.
        group: columns that share a scale: 16, 32, 64, 128, or 0 for all, which is "int8" to the kernels.
        has_offsets: groups have offsets, too; always False where a group has all columns.
        is_float: codes are E4M3 (FP8) instead of integers, without offsets.
        takes_int8: activations are to be int8, too: "w8a8"; only where a group has all columns.
    """

    bits: int
    group: int
    has_offsets: bool
    is_float: bool = False
    takes_int8: bool = False

    def joined(self, other: GroupForm) -> GroupForm:
        """Return the smallest form that holds what either of two holds; both are floats, or none is."""
        group = min((size for size in (self.group, other.group) if size), default=0)
        return GroupForm(
            max(self.bits, other.bits),
            group,
            self.has_offsets or other.has_offsets,
            self.is_float,
            self.takes_int8 and other.takes_int8,
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


class GroupCodes(NamedTuple):
    """A matrix as integers in groups: code * scale + offset.

    Attributes:
        codes: int8 [n, K], of FP8 the bytes as uint8; those of 4 bits are from 0 to 15 if there are offsets,
            else from -8 to 7.
        scales: float32 [n, G] of groups of columns, of which the last one may be smaller.
        offsets: like scales; None for zeros.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None

    def converted(self, own: GroupForm, form: GroupForm) -> GroupCodes:
        """Return the same numbers in another form.

        Args:
            own: that they have.
            form: own joined with others.
        """
        codes, scales, offsets = self
        if form.has_offsets and offsets is None:
            offsets = torch.zeros_like(scales) if form.bits == 8 else -INT4_ZERO * scales
            codes = codes if form.bits == 8 else codes + INT4_ZERO
        if own.group == form.group:
            return GroupCodes(codes, scales, offsets)
        count = -(-codes.shape[1] // form.group)
        times = own.group // form.group or count
        return GroupCodes(
            codes,
            scales.repeat_interleave(times, dim=1)[:, :count],
            None if offsets is None else offsets.repeat_interleave(times, dim=1)[:, :count],
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
