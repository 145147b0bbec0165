"""What blocks of GGUF's types hold: integers, and scales of runs of them, with the roundings of ggml.

Every reader takes blocks uint8 [n, bytes] and returns what n blocks hold. Scales d and minima m are float16.
A K-block has 256 elements in sub-blocks with scales of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from splitserve.worker.ops.quantization import GroupCodes, GroupForm, ScaleUnits


def _numbers(*values: int) -> bytes:
    """The numbers of 4-bit codes as a table for `bytes.translate`."""
    return bytes(value % 256 for value in values).ljust(256, b"\0")


_IQ4_NUMBERS = _numbers(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

# Twice the numbers of MXFP4, whose scale is halved for it.
_MXFP4_NUMBERS = _numbers(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


class BlockKind(NamedTuple):
    """A type of blocks.

    Attributes:
        form: that holds its integers. The products of all scales and integers are exact in float32.
        read: function of blocks that returns the integers, and scales of each run of `form.group`.
    """

    form: GroupForm
    read: Callable[[torch.Tensor], GroupCodes]

    def values(self, blocks: torch.Tensor) -> torch.Tensor:
        """Return float32 [n, elements]."""
        codes, scales, offsets, _ = self.read(blocks)
        values = scales[:, :, None] * codes.view(*scales.shape, -1).float()
        if offsets is not None:
            values += offsets[:, :, None]
        return values.flatten(1)


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """A float16 at a byte, as float32 [n, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(data: torch.Tensor, run: int) -> torch.Tensor:
    """4-bit integers of bytes, uint8 [n, 2 b]: of a run of bytes first the lower halves, then the upper."""
    runs = data.view(data.shape[0], -1, 1, run)
    return torch.cat((runs & 15, runs >> 4), dim=2).flatten(1)


def _looked_up(codes: torch.Tensor, numbers: bytes) -> torch.Tensor:
    """Numbers int8 of codes uint8. An index of torch would be four times as large as what it finds."""
    return torch.frombuffer(bytearray(codes.numpy()).translate(numbers), dtype=torch.int8).view(codes.shape)


def _shifted(data: torch.Tensor, run: int, bits: int) -> torch.Tensor:
    """Integers of some bits, uint8 [n, b * 8 / bits]: of a run of bytes first the lowest, then the next."""
    runs = data.reshape(data.shape[0], -1, 1, run)
    parts = [(runs >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    return torch.cat(parts, dim=2).flatten(1)


def _fifth_bits(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """32 bits from a byte on, lowest first, in the place of a fifth bit: uint8 [n, 32]."""
    places = torch.arange(8, dtype=torch.uint8)
    return (((blocks[:, at : at + 4, None] >> places) & 1) << 4).flatten(1)


def _less(codes: torch.Tensor, zero: int) -> torch.Tensor:
    """Unsigned integers less a number, int8: the difference wraps around to the bits of negative ones."""
    return (codes - zero).view(torch.int8)


def _in_units(
    codes: torch.Tensor,
    unit: torch.Tensor,
    scales: torch.Tensor,
    offset_unit: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
) -> GroupCodes:
    """Codes with scales and offsets that are integers of 8 bits [n, G] times numbers [n, 1]."""
    values = None if offset_unit is None or offsets is None else offset_unit * offsets.float()
    return GroupCodes(codes, unit * scales.float(), values, ScaleUnits(unit, offset_unit))


def _q4_0(blocks: torch.Tensor) -> GroupCodes:
    return GroupCodes(_less(_nibbles(blocks[:, 2:].contiguous(), 16), 8), _half(blocks, 0), None)


def _q4_1(blocks: torch.Tensor) -> GroupCodes:
    codes = _nibbles(blocks[:, 4:].contiguous(), 16).view(torch.int8)
    return GroupCodes(codes, _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: torch.Tensor) -> GroupCodes:
    codes = _nibbles(blocks[:, 6:].contiguous(), 16) | _fifth_bits(blocks, 2)
    return GroupCodes(_less(codes, 16), _half(blocks, 0), None)


def _q5_1(blocks: torch.Tensor) -> GroupCodes:
    codes = _nibbles(blocks[:, 8:].contiguous(), 16) | _fifth_bits(blocks, 4)
    return GroupCodes(codes.view(torch.int8), _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: torch.Tensor) -> GroupCodes:
    return GroupCodes(blocks[:, 2:].contiguous().view(torch.int8), _half(blocks, 0), None)


def _q2_k(blocks: torch.Tensor) -> GroupCodes:
    scales, data = blocks[:, :16], blocks[:, 16:80]
    codes = _shifted(data, 32, 2).view(torch.int8)
    return _in_units(codes, _half(blocks, 80), scales & 15, -_half(blocks, 82), scales >> 4)


def _q3_k(blocks: torch.Tensor) -> GroupCodes:
    high, data, packed = blocks[:, :32], blocks[:, 32:96], blocks[:, 96:108]
    # 16 scales of 6 bits: their lower 4 in 8 bytes, their upper 2 in 4.
    lower = torch.cat((packed[:, :8] & 15, packed[:, :8] >> 4), dim=1)
    scales = _less(lower | (_shifted(packed[:, 8:], 4, 2) << 4), 32)
    # The third bit is inverted: where it is missing, 4 is subtracted.
    codes = _shifted(data, 32, 2) | (_shifted(high, 32, 1) << 2)
    return _in_units(_less(codes, 4), _half(blocks, 108), scales)


def _scales_and_minima(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """8 scales and 8 minima of 6 bits from 12 bytes: the first 4 of each in the lower bits of theirs."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((first & 63, (rest & 15) | ((first >> 2) & 48)), dim=1)
    minima = torch.cat((second & 63, (rest >> 4) | ((second >> 2) & 48)), dim=1)
    return scales, minima


def _scaled_k(blocks: torch.Tensor, codes: torch.Tensor) -> GroupCodes:
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    return _in_units(codes.view(torch.int8), _half(blocks, 0), scales, -_half(blocks, 2), minima)


def _q4_k(blocks: torch.Tensor) -> GroupCodes:
    return _scaled_k(blocks, _nibbles(blocks[:, 16:].contiguous(), 32))


def _q5_k(blocks: torch.Tensor) -> GroupCodes:
    codes = _nibbles(blocks[:, 48:].contiguous(), 32) | (_shifted(blocks[:, 16:48], 32, 1) << 4)
    return _scaled_k(blocks, codes)


def _q6_k(blocks: torch.Tensor) -> GroupCodes:
    lower = _nibbles(blocks[:, :128].contiguous(), 64)
    codes = lower | (_shifted(blocks[:, 128:192], 32, 2) << 4)
    scales = blocks[:, 192:208].contiguous().view(torch.int8)
    return _in_units(_less(codes, 32), _half(blocks, 208), scales)


def _iq4_nl(blocks: torch.Tensor) -> GroupCodes:
    return GroupCodes(
        _looked_up(_nibbles(blocks[:, 2:].contiguous(), 16), _IQ4_NUMBERS), _half(blocks, 0), None
    )


def _iq4_xs(blocks: torch.Tensor) -> GroupCodes:
    # 8 scales of 6 bits: their upper 2 in 2 bytes, their lower 4 in 4.
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)
    upper = ((blocks[:, 2:4, None] >> shifts) & 3).flatten(1)
    packed = blocks[:, 4:8, None]
    lower = torch.cat((packed & 15, packed >> 4), dim=2).flatten(1)
    scale = _half(blocks, 0) * ((lower | (upper << 4)).float() - 32)
    codes = _looked_up(_nibbles(blocks[:, 8:].contiguous(), 16), _IQ4_NUMBERS)
    return GroupCodes(codes, scale, None)


def _mxfp4(blocks: torch.Tensor) -> GroupCodes:
    exponent = blocks[:, :1].int()
    # 2 ** (exponent - 128) as the bits of a float32, which is subnormal for the two smallest.
    scale = torch.where(exponent < 2, 0x00200000 << exponent, (exponent - 1) << 23)
    codes = _looked_up(_nibbles(blocks[:, 1:].contiguous(), 16), _MXFP4_NUMBERS)
    return GroupCodes(codes, scale.int().view(torch.float32), None)


KINDS = {
    "Q4_0": BlockKind(GroupForm(4, 32, False), _q4_0),
    "Q4_1": BlockKind(GroupForm(4, 32, True), _q4_1),
    "Q5_0": BlockKind(GroupForm(6, 32, False), _q5_0),
    "Q5_1": BlockKind(GroupForm(6, 32, True), _q5_1),
    "Q8_0": BlockKind(GroupForm(8, 32, False), _q8_0),
    "Q2_K": BlockKind(GroupForm(4, 16, True, has_units=True), _q2_k),
    "Q3_K": BlockKind(GroupForm(4, 16, False, has_units=True), _q3_k),
    "Q4_K": BlockKind(GroupForm(4, 32, True, has_units=True), _q4_k),
    "Q5_K": BlockKind(GroupForm(6, 32, True, has_units=True), _q5_k),
    "Q6_K": BlockKind(GroupForm(6, 16, False, has_units=True), _q6_k),
    "IQ4_NL": BlockKind(GroupForm(8, 32, False), _iq4_nl),
    "IQ4_XS": BlockKind(GroupForm(8, 32, False), _iq4_xs),
    "MXFP4": BlockKind(GroupForm(8, 32, False), _mxfp4),
}
"""By the name of the type."""
