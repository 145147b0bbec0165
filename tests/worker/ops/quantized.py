"""Quantised weights as the matrices they stand for."""

import torch
from torch import Tensor

from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import (
    GROUP_COLUMNS,
    UNIT_COLUMNS,
    GroupCodes,
    GroupForm,
    KeptForm,
    ScaleUnits,
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


def draw_group_codes(rows: int, columns: int, form: GroupForm) -> GroupCodes:
    """Random codes of a form, [rows, columns], with random scales and offsets."""
    codes = draw_codes(rows, columns, form)
    if form.has_units:
        return draw_in_units(codes, form)
    scales = torch.randn(rows, -(-columns // form.group))
    return GroupCodes(codes, scales, torch.randn_like(scales) if form.has_offsets else None)


def draw_in_units(codes: Tensor, form: GroupForm) -> GroupCodes:
    """Codes with random scales and offsets: integers times a number of 256 columns, which may be 0."""
    num_groups = -(-codes.shape[1] // form.group)
    size = (len(codes), -(-codes.shape[1] // UNIT_COLUMNS))

    def values_and_units() -> tuple[Tensor, Tensor]:
        units = torch.randn(size).half().float() * (torch.rand(size) > 0.1)
        numbers = units.repeat_interleave(UNIT_COLUMNS // form.group, 1)[:, :num_groups]
        return numbers * torch.randint(-128, 128, numbers.shape), units

    scales, units = values_and_units()
    offsets, offset_units = values_and_units() if form.has_offsets else (None, None)
    return GroupCodes(codes, scales, offsets, ScaleUnits(units, offset_units))


def weight_and_values(rows: int, columns: int, form: WeightForm) -> tuple[PackedWeight, Tensor]:
    """A random packed weight, and the matrix it multiplies with."""
    matrix = torch.randn(rows, columns).bfloat16()
    return PackedWeight.of(matrix, form), dequantized(matrix, form)


def multiplied(x: Tensor, form: KeptForm, isa: str) -> Tensor:
    """Activations [rows, K] as they meet codes of this form, in float64.

    Where they become integers of 16 bits they are multiples of a power of two of each block of inputs, where
    they become those of 8 bits of its largest magnitude over 127.
    """
    if not isinstance(form, GroupForm):
        return _in_words(x, 128 if form == "int8" else GROUP_COLUMNS) if isa in WORD_ISAS else x.double()
    if isa not in WORD_ISAS or form.is_float:
        return x.double()
    if form.takes_int8:
        return torch.cat([_block_of_bytes(block) for block in x.split(form.group, dim=1)], dim=1)
    if form.has_units:
        # So that the sum of products with codes and scales of 8 bits fits 31 bits.
        depth = 64 if form.bits > 4 and form.has_offsets and form.group < 128 else 128
        code_bits = form.bits if form.has_offsets else form.bits - 1
        return _in_words(x, depth, bits=31 - 7 - depth.bit_length() + 1 - code_bits)
    return _in_words(x, form.group)


def _in_words(x: Tensor, depth: int, *, bits: int = 15) -> Tensor:
    return torch.cat([_rounded_block(block, bits) for block in x.split(depth, dim=1)], dim=1)


def _rounded_block(x: Tensor, bits: int) -> Tensor:
    # One more than the largest mantissa is the next power of two.
    exponents = (x.abs().amax(dim=1, keepdim=True).view(torch.int16).int() + 1) >> 7
    steps = torch.exp2(exponents.double() - 127 - (bits - 1))
    return (x.double() / steps).round() * steps * (exponents > 14)


def _block_of_bytes(x: Tensor) -> Tensor:
    largest, most = x.abs().amax(dim=1, keepdim=True).float(), torch.tensor(127.0)
    codes = torch.where(largest >= 1e-36, x.float() * (most / largest), 0).round()
    return codes.double() * (largest / most).double()
