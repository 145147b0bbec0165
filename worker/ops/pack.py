"""The kernels that round and pack weights, once, while they are loaded; errors as in worker.ops.cpu."""

from __future__ import annotations

from typing import TYPE_CHECKING

from splitserve.worker._native import load_library

if TYPE_CHECKING:
    from torch import Tensor

    from splitserve.worker.ops.packed_weight import PackedWeight
    from splitserve.worker.ops.quantization import Quantized

_lib = load_library("splitserve_cpu")


def pack_weight(weight: PackedWeight, source: Tensor, first_row: int, first_column: int) -> None:
    """Write a rectangle of a packed matrix.

    Args:
        weight: [N, K], not in int4.
        source: [n, k] of any strides, dtype of the weight's data.
        first_row: row of the matrix where source begins.
        first_column: its column.
    """
    rows, columns = weight.shape
    _lib.pack_weight(weight.data, source, rows, columns, first_row, first_column)


def pack_int4(weight: PackedWeight, source: Quantized, first_row: int) -> None:
    """Write whole rows of a packed matrix in int4.

    Args:
        weight: [N, K].
        source: [n, K] in groups.
        first_row: row of the matrix where source begins.
    """
    rows, columns = weight.shape
    _lib.pack_int4(weight.data, source.codes, source.scales, rows, columns, first_row)


def quantize_int8(codes: Tensor, scales: Tensor, rows: Tensor) -> None:
    """Round rows to multiples of a scale; a row with a NaN gets the scale NaN.

    Args:
        codes: int8 [n, K], written: -127 to 127.
        scales: float32 [n], written.
        rows: float32 or bfloat16 [n, K].
    """
    _lib.quantize_int8(codes, scales, rows)


def quantize_int4(codes: Tensor, scales: Tensor, rows: Tensor) -> None:
    """Round rows to multiples of a scale per 32 columns; a group with a NaN gets the scale NaN.

    Args:
        codes: int8 [n, K], written: -8 to 7.
        scales: bfloat16 [n, ceil(K / 32)], written.
        rows: float32 or bfloat16 [n, K].
    """
    _lib.quantize_int4(codes, scales, rows)
