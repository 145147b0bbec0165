"""How weights become small integers with scales while they are loaded: symmetric, rounded to nearest."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

from splitserve.worker._native import load_library

_lib = load_library("splitserve_cpu")

GROUP_COLUMNS = 32

WeightForm = Literal["plain", "int8", "int4", "mxfp4"]


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
