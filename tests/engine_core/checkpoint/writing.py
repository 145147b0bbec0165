"""Writes safetensors files byte by byte, right and wrong ones."""

from __future__ import annotations

import json
import struct
from pathlib import Path

ENTRY = dict[str, object]


def file_bytes(header: dict[str, object] | bytes, data: bytes) -> bytes:
    """Return the bytes of a file with this header before these data."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> ENTRY:
    """Return one tensor's description."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def split(path: Path) -> tuple[dict[str, ENTRY], bytes]:
    """Return header and data of a good file."""
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + length]), content[8 + length :]
