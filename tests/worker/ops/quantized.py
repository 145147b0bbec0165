"""Quantised weights as the matrices they stand for."""

import torch
from torch import Tensor

from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import (
    GROUP_COLUMNS,
    WeightForm,
    quantize_int4,
    quantize_int8,
    quantize_mxfp4,
)

FORMS: tuple[WeightForm, ...] = ("int8", "int4", "mxfp4")
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


def weight_and_values(rows: int, columns: int, form: WeightForm) -> tuple[PackedWeight, Tensor]:
    """A random packed weight, and the matrix it multiplies with."""
    matrix = torch.randn(rows, columns).bfloat16()
    return PackedWeight.of(matrix, form), dequantized(matrix, form)
