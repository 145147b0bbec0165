"""How integers are taken out of 32-bit words, lowest bits first."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Cover(NamedTuple):
    """The words that hold a range of integers, and where in them the range begins."""

    words: range
    offset: int


def cover(integers: range, per_word: int) -> Cover:
    """Return the words that hold a range of integers, of so many per word."""
    first = integers.start // per_word
    return Cover(range(first, -(-integers.stop // per_word)), integers.start - first * per_word)


def unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the integers of words, int32 [n, w], as uint8 [n, w, 32 / bits]; bits is 4 or 8."""
    values = words.contiguous().view(torch.uint8).view(*words.shape, 4)
    if bits == 8:
        return values
    return torch.stack((values & 15, values >> 4), dim=-1).flatten(-2)


def unpack_columns(words: torch.Tensor, bits: int, offset: int, count: int) -> torch.Tensor:
    """Return integers that lie side by side, from words [n, w]: uint8 [n, count] from an offset on."""
    return unpack(words, bits).flatten(1)[:, offset : offset + count]


def unpack_rows(words: torch.Tensor, bits: int, offset: int, count: int) -> torch.Tensor:
    """Return integers that lie below each other, from words [w, n], turned: uint8 [n, count]."""
    turned = unpack(words, bits).permute(1, 0, 2)
    return turned.reshape(words.shape[1], -1)[:, offset : offset + count]
