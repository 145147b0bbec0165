"""Whether a safetensors file is valid, decided from its header before anything is allocated.

Layout: 8 bytes little-endian header length n, n bytes of JSON, then the tensors. The header maps each name to
dtype, shape and [begin, end) within the data; `__metadata__` is text that is not read. The tensors must cover
the data exactly.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from splitserve.engine_core.checkpoint.open_file import OpenFile
from splitserve.engine_core.errors import ModelLoadError

MAX_HEADER_BYTES = 16 * 2**20
MAX_TENSORS = 65536
_PREFIX_BYTES = 8
_MAX_DIMS = 8
_MAX_NAME_CHARS = 512

# Bytes per element of every dtype of the format, so that the size of a skipped tensor is checked too.
_ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "F64": 8,
    "I64": 8,
    "U64": 8,
}

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**48)]


class _RawEntry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: Annotated[list[_Size], msgspec.Meta(max_length=_MAX_DIMS)]
    data_offsets: tuple[_Size, _Size]


class TensorEntry(NamedTuple):
    """One tensor of a checked file.

    Attributes:
        dtype: as the format names it, e.g. "BF16".
        shape: sizes.
        begin: offset of its first byte in the file.
        num_bytes: shape times bytes per element.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    num_bytes: int


class SafetensorsFile:
    """A checked file, kept open so that what is read later is what was checked; close() it.

    Attributes:
        path: of the file.
        tensors: its tensors by name.
    """

    def __init__(self, path: Path) -> None:
        """Open and check a file.

        Raises:
            ModelLoadError: names the file, and the tensor if one is at fault.
        """
        self.path = path
        self._file = OpenFile(path)
        try:
            self.tensors = self._check()
        except BaseException:
            self._file.close()
            raise

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return self._file.num_bytes

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill target with the file's bytes from offset on.

        Raises:
            ModelLoadError: the file was truncated since, or cannot be read.
        """
        self._file.read_into(offset, target)

    def _check(self) -> dict[str, TensorEntry]:
        size = self._file.num_bytes
        if size < _PREFIX_BYTES:
            raise ModelLoadError(f"{self.path} is {size} bytes long, too short for a safetensors file")
        num_header_bytes = int.from_bytes(self._file.read(0, _PREFIX_BYTES), "little")
        if num_header_bytes > min(MAX_HEADER_BYTES, size - _PREFIX_BYTES):
            raise ModelLoadError(
                f"{self.path} claims a header of {num_header_bytes} bytes; the file has {size} bytes and the "
                f"limit is {MAX_HEADER_BYTES}"
            )
        return parse_header(self._file.read(_PREFIX_BYTES, num_header_bytes), size, str(self.path))


def parse_header(header: bytes, file_bytes: int, where: str) -> dict[str, TensorEntry]:
    """Check a header against the size of its file.

    Args:
        header: the JSON, without the length before it.
        file_bytes: size of the whole file.
        where: the file, for errors.

    Raises:
        ModelLoadError: the header is malformed, or the tensors do not cover the rest of the file exactly.
    """
    data_begin = 8 + len(header)
    tensors = {}
    for name, raw in _decode(header, where).items():
        if name != "__metadata__":
            tensors[name] = _entry(name, raw, data_begin, where)
    _check_ranges(tensors, data_begin, file_bytes, where)
    return tensors


def _decode(header: bytes, where: str) -> dict[str, msgspec.Raw]:
    try:
        entries = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelLoadError(f"{where}: the header is not a JSON object: {error}") from error
    if len(entries) > MAX_TENSORS:
        raise ModelLoadError(f"{where}: the header has {len(entries)} entries, the limit is {MAX_TENSORS}")
    return entries


def _entry(name: str, raw: msgspec.Raw, data_begin: int, where: str) -> TensorEntry:
    if len(name) > _MAX_NAME_CHARS:
        raise ModelLoadError(
            f"{where}: a tensor's name has {len(name)} characters, the limit is {_MAX_NAME_CHARS}"
        )
    try:
        entry = msgspec.json.decode(raw, type=_RawEntry)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelLoadError(
            f"{where}: tensor {name!r} has an invalid description: {str(error)[:300]}"
        ) from error
    item_bytes = _ITEM_BYTES.get(entry.dtype)
    if item_bytes is None:
        raise ModelLoadError(f"{where}: tensor {name!r} has the unknown dtype {entry.dtype[:40]!r}")
    begin, end = entry.data_offsets
    # Python integers do not overflow, so this product is exact for any sizes.
    num_bytes = math.prod(entry.shape) * item_bytes
    if end - begin != num_bytes:
        raise ModelLoadError(
            f"{where}: tensor {name!r} of shape {entry.shape} and dtype {entry.dtype} takes {num_bytes} "
            f"bytes, but its range is {begin}..{end}"
        )
    return TensorEntry(entry.dtype, tuple(entry.shape), data_begin + begin, num_bytes)


def _check_ranges(tensors: dict[str, TensorEntry], data_begin: int, file_bytes: int, where: str) -> None:
    """Check that the ranges follow each other from the header's end to the file's end."""
    position = data_begin
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].num_bytes)):
        if entry.begin < position:
            raise ModelLoadError(f"{where}: tensor {name!r} overlaps the tensor before it")
        if entry.begin > position:
            raise ModelLoadError(
                f"{where}: {entry.begin - position} bytes before tensor {name!r} do not belong to any tensor"
            )
        position += entry.num_bytes
        if position > file_bytes:
            raise ModelLoadError(
                f"{where} is truncated: tensor {name!r} ends at byte {position}, the file at {file_bytes}"
            )
    if position != file_bytes:
        raise ModelLoadError(f"{where}: {file_bytes - position} bytes at the end do not belong to any tensor")
