"""Quantised weights as the matrices they stand for."""

import torch
from torch import Tensor

from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import (
    GROUP_COLUMNS,
    GroupForm,
    KeptForm,
    WeightForm,
    quantize_int4,
    quantize_int8,
    quantize_mxfp4,
)

FORMS: tuple[WeightForm, ...] = ("int8", "int4", "mxfp4")
# Where activations are rounded to integers of 16 bits before they meet codes.
WORD_ISAS = ("avx2", "avx512", "avx512_bf16")
MXFP4_VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def dequantized(matrix: Tensor, form: WeightForm) -> Tensor:
    """What a matrix [N, K] is after rounding, in float64."""
    if form == "int8":
        codes, scales = quantize_int8(matrix)
        return codes.double() * scales.double().unsqueeze(1)
    if form == "mxfp4":
        codes, exponents = quantize_mxfp4(matrix)
        values, scales = MXFP4_VALUES[codes.long()], torch.exp2(exponents.double() - 127)
        return values.double() * scales.repeat_interleave(GROUP_COLUMNS, dim=1)[:, : matrix.shape[1]]
    codes, scales = quantize_int4(matrix)
    return codes.double() * scales.double().repeat_interleave(GROUP_COLUMNS, dim=1)[:, : matrix.shape[1]]


def draw_codes(rows: int, columns: int, form: GroupForm) -> Tensor:
    """Random codes of a form, int8 [rows, columns]."""
    size = 2**form.bits
    low = 0 if form.has_offsets and form.bits < 8 else -size // 2
    return torch.randint(low, low + size, (rows, columns)).to(torch.int8)


def weight_and_values(rows: int, columns: int, form: WeightForm) -> tuple[PackedWeight, Tensor]:
    """A random packed weight, and the matrix it multiplies with."""
    matrix = torch.randn(rows, columns).bfloat16()
    return PackedWeight.of(matrix, form), dequantized(matrix, form)


def multiplied(x: Tensor, form: KeptForm, isa: str) -> Tensor:
    """Activations [rows, K] as they meet codes of this form, in float64.

    Where they become integers of 16 bits they are multiples of a power of two of each block of inputs, where
    they become those of 8 bits of its largest magnitude over 127.
    """
    if isa not in WORD_ISAS or (isinstance(form, GroupForm) and form.is_float):
        return x.double()
    depth = form.group if isinstance(form, GroupForm) else 128 if form == "int8" else GROUP_COLUMNS
    blocks = x.split(depth, dim=1)
    takes_int8 = isinstance(form, GroupForm) and form.takes_int8
    rounded = _block_of_bytes if takes_int8 else _rounded_block
    return torch.cat([rounded(block) for block in blocks], dim=1)


def _rounded_block(x: Tensor) -> Tensor:
    # One more than the largest mantissa is the next power of two.
    exponents = (x.abs().amax(dim=1, keepdim=True).view(torch.int16).int() + 1) >> 7
    steps = torch.exp2(exponents.double() - 127 - 14)
    return (x.double() / steps).round() * steps * (exponents > 14)


def _block_of_bytes(x: Tensor) -> Tensor:
    largest, most = x.abs().amax(dim=1, keepdim=True).float(), torch.tensor(127.0)
    codes = torch.where(largest >= 1e-36, x.float() * (most / largest), 0).round()
    return codes.double() * (largest / most).double()
