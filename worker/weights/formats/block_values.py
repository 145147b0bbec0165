"""What blocks of GGUF's types are worth, in float32, with the roundings of ggml's own decoding.

Every decoder takes blocks uint8 [n, bytes] and returns float32 [n, elements]. Scales d and minima m are
float16. A K-block has 256 elements in sub-blocks with scales of their own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Decoder = Callable[[torch.Tensor], torch.Tensor]

_IQ4_VALUES = torch.tensor(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), dtype=torch.float32
)


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """A float16 at a byte, as float32 [n, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(data: torch.Tensor, run: int) -> torch.Tensor:
    """4-bit integers of bytes, uint8 [n, 2 b]: of a run of bytes first the lower halves, then the upper."""
    runs = data.view(data.shape[0], -1, 1, run)
    return torch.cat((runs & 15, runs >> 4), dim=2).flatten(1)


def _shifted(data: torch.Tensor, run: int, bits: int) -> torch.Tensor:
    """Integers of some bits, uint8 [n, b * 8 / bits]: of a run of bytes first the lowest, then the next."""
    runs = data.reshape(data.shape[0], -1, 1, run)
    parts = [(runs >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    return torch.cat(parts, dim=2).flatten(1)


def _fifth_bits(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """32 bits from a byte on, lowest first, in the place of a fifth bit: uint8 [n, 32]."""
    places = torch.arange(8, dtype=torch.uint8)
    return (((blocks[:, at : at + 4, None] >> places) & 1) << 4).flatten(1)


def q4_0_codes(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the integers of Q4_0, int8 [n, 32] from -8 to 7, and their scales, float32 [n, 1]."""
    # As unsigned bytes the difference wraps around to the bits of the negative number.
    return (_nibbles(blocks[:, 2:].contiguous(), 16) - 8).view(torch.int8), _half(blocks, 0)


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    codes, scales = q4_0_codes(blocks)
    return scales * codes.float()


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:].contiguous(), 16).float() + _half(blocks, 2)


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    codes = _nibbles(blocks[:, 6:].contiguous(), 16) | _fifth_bits(blocks, 2)
    return _half(blocks, 0) * (codes.float() - 16)


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    codes = _nibbles(blocks[:, 8:].contiguous(), 16) | _fifth_bits(blocks, 4)
    return _half(blocks, 0) * codes.float() + _half(blocks, 2)


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[:, 2:].contiguous().view(torch.int8).float() * _half(blocks, 0)


def _q2_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, data = blocks[:, :16], blocks[:, 16:80]
    scale = _half(blocks, 80) * (scales & 15).float()
    minimum = _half(blocks, 82) * (scales >> 4).float()
    codes = _shifted(data, 32, 2).view(-1, 16, 16).float()
    return (scale[:, :, None] * codes - minimum[:, :, None]).flatten(1)


def _q3_k(blocks: torch.Tensor) -> torch.Tensor:
    high, data, packed = blocks[:, :32], blocks[:, 32:96], blocks[:, 96:108]
    # 16 scales of 6 bits: their lower 4 in 8 bytes, their upper 2 in 4.
    lower = torch.cat((packed[:, :8] & 15, packed[:, :8] >> 4), dim=1)
    scales = (lower | (_shifted(packed[:, 8:], 4, 2) << 4)).float() - 32
    scale = _half(blocks, 108) * scales
    # The third bit is inverted: where it is missing, 4 is subtracted.
    missing = 1 - _shifted(high, 32, 1).float()
    codes = _shifted(data, 32, 2).float() - 4 * missing
    return (scale[:, :, None] * codes.view(-1, 16, 16)).flatten(1)


def _scales_and_minima(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """8 scales and 8 minima of 6 bits from 12 bytes: the first 4 of each in the lower bits of theirs."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((first & 63, (rest & 15) | ((first >> 2) & 48)), dim=1)
    minima = torch.cat((second & 63, (rest >> 4) | ((second >> 2) & 48)), dim=1)
    return scales.float(), minima.float()


def _scaled_k(blocks: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    scale, minimum = _half(blocks, 0) * scales, _half(blocks, 2) * minima
    return (scale[:, :, None] * codes.view(-1, 8, 32).float() - minimum[:, :, None]).flatten(1)


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    return _scaled_k(blocks, _nibbles(blocks[:, 16:].contiguous(), 32))


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    codes = _nibbles(blocks[:, 48:].contiguous(), 32) | (_shifted(blocks[:, 16:48], 32, 1) << 4)
    return _scaled_k(blocks, codes)


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    lower = _nibbles(blocks[:, :128].contiguous(), 64)
    codes = (lower | (_shifted(blocks[:, 128:192], 32, 2) << 4)).float() - 32
    scale = _half(blocks, 208) * blocks[:, 192:208].contiguous().view(torch.int8).float()
    return (scale[:, :, None] * codes.view(-1, 16, 16)).flatten(1)


def _iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * _IQ4_VALUES[_nibbles(blocks[:, 2:].contiguous(), 16).int()]


def _iq4_xs(blocks: torch.Tensor) -> torch.Tensor:
    # 8 scales of 6 bits: their upper 2 in 2 bytes, their lower 4 in 4.
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)
    upper = ((blocks[:, 2:4, None] >> shifts) & 3).flatten(1)
    packed = blocks[:, 4:8, None]
    lower = torch.cat((packed & 15, packed >> 4), dim=2).flatten(1)
    scale = _half(blocks, 0) * ((lower | (upper << 4)).float() - 32)
    values = _IQ4_VALUES[_nibbles(blocks[:, 8:].contiguous(), 16).int()]
    return (scale[:, :, None] * values.view(-1, 8, 32)).flatten(1)


DECODERS: dict[str, Decoder] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}
"""By the name of the type."""
