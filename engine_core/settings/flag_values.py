"""How values on a command line are parsed: counts, sizes and names with their usual short forms."""

from __future__ import annotations

import argparse
import re
from decimal import Decimal

# As vLLM reads them: lower case counts in thousands, upper case in powers of 1024.
_COUNT_UNITS = {"": 1} | {unit: 1000**i for i, unit in enumerate("kmgt", 1)}
_COUNT_UNITS |= {unit: 1024**i for i, unit in enumerate("KMGT", 1)}
_BYTE_UNITS = {"": 1} | {unit: 1024**i for i, unit in enumerate("kmgt", 1)}
_DTYPE_NAMES = {
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "float": "float32",
    "fp32": "float32",
}


def parse_count(text: str) -> int:
    """Parse 4096, 4k (4000), 4K (4096) or 1.5k; the units are k, m, g, t and K, M, G, T.

    Raises:
        argparse.ArgumentTypeError: it has another form, or is not a whole number.
    """
    match = re.fullmatch(r"([+-]?[0-9]{1,18}(?:_[0-9]{1,18})*(?:\.[0-9]{1,18})?)([kmgtKMGT]?)", text)
    value = Decimal(match[1]) * _COUNT_UNITS[match[2]] if match else None
    if value is None or value != int(value):
        raise argparse.ArgumentTypeError(
            f"expected a whole number such as 4096, 4k (4000) or 4K (4096), got {text!r}"
        )
    return int(value)


def parse_bytes(text: str) -> int:
    """Parse 1024, 512M, 4GiB or 0.5G; the units are powers of 1024.

    Raises:
        argparse.ArgumentTypeError: it has another form, or is not a whole number of bytes.
    """
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)([kmgt]?)(i?b)?", text.lower())
    value = Decimal(match[1]) * _BYTE_UNITS[match[2]] if match else None
    if value is None or value != int(value):
        raise argparse.ArgumentTypeError(f"expected a number of bytes such as 512M or 0.5G, got {text!r}")
    return int(value)


def format_bytes(num_bytes: int) -> str:
    """Return the shortest text that parse_bytes converts to this number: 4M, 1536."""
    for unit in ("T", "G", "M", "K"):
        size = _BYTE_UNITS[unit.lower()]
        if num_bytes and num_bytes % size == 0:
            return f"{num_bytes // size}{unit}"
    return str(num_bytes)


def shown_bytes(num_bytes: int) -> str:
    """Return a size for people: 12.3 GiB, 512.0 MiB, 12 bytes."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} bytes"


def parse_name(text: str) -> str:
    """Parse a name, ignoring case."""
    return text.lower()


def parse_kv_cache_dtype(text: str) -> str:
    """Parse the name of a data type of the KV cache; also bf16 and fp8_e4m3."""
    name = parse_dtype(text)
    return "fp8" if name == "fp8_e4m3" else name


def parse_dtype(text: str) -> str:
    """Parse the name of a data type; also half, fp16, bf16, float and fp32."""
    name = text.lower()
    return _DTYPE_NAMES.get(name, name)
