"""How fields are read that the configs of several methods have: bits and group sizes."""

from __future__ import annotations

from splitserve.engine_core.checkpoint.config.common_fields import MAX_WIDTH
from splitserve.engine_core.checkpoint.config.fields import Fields

_BITS = (4, 8)
# Published groups have 32, 64, 128 or 1024 inputs; no word of integers lies in two.
_GROUP_STEP = 8


def read_bits(config: Fields, name: str, default: int | None = None) -> int:
    """Return the bits of an integer.

    Raises:
        ModelLoadError: it is neither 4 nor 8.
    """
    bits = config.integer(name, 1, 64, default)
    if bits not in _BITS:
        raise config.error(name, f"must be 4 or 8, got {bits}")
    return bits


def read_group_size(config: Fields, name: str, default: int | None = None) -> int:
    """Return how many inputs share a scale, 0 for all, which files write as -1.

    Raises:
        ModelLoadError: it is out of range, or not a multiple of 8.
    """
    size = config.integer(name, -1, MAX_WIDTH, -1 if default == 0 else default)
    if size == 0 or (size > 0 and size % _GROUP_STEP):
        raise config.error(name, f"must be -1 or a multiple of {_GROUP_STEP}, got {size}")
    return max(size, 0)
