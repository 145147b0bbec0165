"""The beginning of a GGUF file: metadata and descriptions of tensors, checked against the file's size.

Layout, little-endian: "GGUF", version, number of tensors, number of metadata; key, type and value of each
metadata; name, sizes (the fastest first), type and offset of each tensor; padding; the tensors.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

from splitserve.engine_core.checkpoint.gguf.tensor_types import OTHERS, TYPES
from splitserve.engine_core.checkpoint.open_file import OpenFile
from splitserve.engine_core.checkpoint.safetensors_file import MAX_TENSORS, TensorEntry
from splitserve.engine_core.errors import ModelLoadError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# The largest vocabularies in use, with their merges, take 15 MiB.
MAX_HEADER_BYTES = 128 * 2**20
_FIRST_BYTES = 2**20
_MAX_KEYS = 4096
_MAX_DIMS = 4
_MAX_NAME_BYTES = 256
_MAX_SIZE = 2**48
_MAX_ALIGNMENT = 2**16

# By the number of a type: how it is packed.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class Header(NamedTuple):
    """What precedes the tensors.

    Attributes:
        metadata: values by key; arrays are lists, or Texts.
        tensors: by their names in the file; their shapes have the slowest dimension first.
    """

    metadata: dict[str, object]
    tensors: dict[str, TensorEntry]


class Texts(NamedTuple):
    """An array of texts, decoded where it is needed: a vocabulary has hundreds of thousands.

    Attributes:
        where: file and key, for errors.
        data: each text behind its length in 8 bytes.
        num_texts: how many.
    """

    where: str
    data: bytes
    num_texts: int

    def decode(self) -> list[str]:
        """Return the texts.

        Raises:
            ModelLoadError: one is not UTF-8.
        """
        texts, position = [], 0
        try:
            for _ in range(self.num_texts):
                begin = position + 8
                position = begin + int.from_bytes(self.data[position:begin], "little")
                texts.append(self.data[begin:position].decode())
        except UnicodeDecodeError as error:
            raise ModelLoadError(f"{self.where} has a text that is not UTF-8") from error
        return texts


def read_header(file: OpenFile) -> Header:
    """Read and check the header of a GGUF file.

    Raises:
        ModelLoadError: names the file and what is wrong with it, or the type of tensor that is not supported.
    """
    cursor = _Cursor(file)
    if cursor.take(4) != MAGIC:
        raise cursor.error("is not a GGUF file")
    version = cursor.integer("I")
    if version not in VERSIONS:
        raise cursor.error(f"has version {version} of GGUF; supported are {', '.join(map(str, VERSIONS))}")
    num_tensors, num_keys = cursor.integer("Q"), cursor.integer("Q")
    if num_tensors > MAX_TENSORS or num_keys > _MAX_KEYS:
        raise cursor.error(
            f"claims {num_tensors} tensors and {num_keys} metadata; "
            f"the limits are {MAX_TENSORS} and {_MAX_KEYS}"
        )
    metadata: dict[str, object] = {}
    for _ in range(num_keys):
        key = cursor.name("key of a metadata")
        if key in metadata:
            raise cursor.error(f"has the metadata {key!r} twice")
        metadata[key] = cursor.value(key)
    raw = [_read_tensor(cursor) for _ in range(num_tensors)]
    return Header(metadata, _place(cursor, raw, _alignment(cursor, metadata)))


class _RawTensor(NamedTuple):
    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    num_bytes: int


def _read_tensor(cursor: _Cursor) -> _RawTensor:
    name = cursor.name("name of a tensor")
    num_dims = cursor.integer("I")
    if not 1 <= num_dims <= _MAX_DIMS:
        raise cursor.error(
            f"has the tensor {name!r} with {num_dims} dimensions; 1 to {_MAX_DIMS} are possible"
        )
    sizes = [cursor.integer("Q") for _ in range(num_dims)]
    number, offset = cursor.integer("I"), cursor.integer("Q")
    if not all(1 <= size <= _MAX_SIZE for size in sizes):
        raise cursor.error(f"has the tensor {name!r} of size {sizes}")
    kind = TYPES.get(number)
    if kind is None:
        known = ", ".join(kind.name for kind in TYPES.values())
        raise cursor.error(
            f"has the tensor {name!r} of type {OTHERS.get(number, number)}; supported are {known}"
        )
    if sizes[0] % kind.block_elements:
        raise cursor.error(
            f"has the tensor {name!r} with rows of {sizes[0]}, which no blocks of {kind.block_elements} fill"
        )
    num_bytes = math.prod(sizes) // kind.block_elements * kind.block_bytes
    return _RawTensor(name, tuple(reversed(sizes)), kind.name, offset, num_bytes)


def _alignment(cursor: _Cursor, metadata: dict[str, object]) -> int:
    value = metadata.get("general.alignment", 32)
    if not isinstance(value, int) or not 1 <= value <= _MAX_ALIGNMENT:
        raise cursor.error(f"has general.alignment {value!r:.100}; it must be from 1 to {_MAX_ALIGNMENT}")
    return value


def _place(cursor: _Cursor, raw: list[_RawTensor], alignment: int) -> dict[str, TensorEntry]:
    """Check that the tensors are within the file and do not overlap."""
    data_begin = -(-cursor.position // alignment) * alignment
    end = data_begin
    entries: dict[str, TensorEntry] = {}
    for tensor in sorted(raw, key=lambda tensor: tensor.offset):
        begin = data_begin + tensor.offset
        if tensor.name in entries:
            raise cursor.error(f"has the tensor {tensor.name!r} twice")
        if begin % alignment:
            raise cursor.error(
                f"has the tensor {tensor.name!r} at {begin}, which is not aligned to {alignment}"
            )
        if begin < end:
            raise cursor.error(f"has the tensor {tensor.name!r}, which overlaps the one before it")
        end = begin + tensor.num_bytes
        if end > cursor.num_bytes:
            raise cursor.error(
                f"is truncated: tensor {tensor.name!r} ends at byte {end}, the file at {cursor.num_bytes}"
            )
        entries[tensor.name] = TensorEntry(tensor.dtype, tensor.shape, begin, tensor.num_bytes)
    return entries


class _Cursor:
    """A place in the header; what follows it is read in growing pieces."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self.num_bytes = file.num_bytes
        self.position = 0
        self._limit = min(file.num_bytes, MAX_HEADER_BYTES)
        self._bytes = file.read(0, min(self._limit, _FIRST_BYTES))

    def error(self, problem: str) -> ModelLoadError:
        message = f"{self._file.path} {problem[:500]}"
        return ModelLoadError(message.encode("utf-8", "backslashreplace").decode())

    def take(self, count: int) -> bytes:
        begin, end = self.position, self.position + count
        if end > len(self._bytes):
            if end > self._limit:
                raise self.error(f"is truncated, or its header is larger than {MAX_HEADER_BYTES} bytes")
            size = min(self._limit, max(end, 2 * len(self._bytes)))
            self._bytes += self._file.read(len(self._bytes), size - len(self._bytes))
        self.position = end
        return self._bytes[begin:end]

    def integer(self, kind: str) -> int:
        value: int = struct.unpack("<" + kind, self.take(struct.calcsize("<" + kind)))[0]
        return value

    def text(self, what: str) -> str:
        try:
            return self.take(self.integer("Q")).decode()
        except UnicodeDecodeError as error:
            raise self.error(f"has {what} that is not UTF-8") from error

    def name(self, what: str) -> str:
        text = self.text(f"the {what}")
        if not 1 <= len(text) <= _MAX_NAME_BYTES or not text.isprintable():
            raise self.error(f"has the {what} {text!r:.100}; 1 to {_MAX_NAME_BYTES} letters are possible")
        return text

    def value(self, key: str) -> object:
        kind = self.integer("I")
        if kind == _STRING:
            return self.text(f"a text in {key!r}")
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _SCALARS:
            raise self.error(f"has the metadata {key!r} of the unknown type {kind}")
        return struct.unpack("<" + _SCALARS[kind], self.take(struct.calcsize("<" + _SCALARS[kind])))[0]

    def _texts(self, key: str, count: int) -> Texts:
        begin = self.position
        for _ in range(count):
            self.take(self.integer("Q"))
        return Texts(f"{self._file.path}: metadata {key!r}", self._bytes[begin : self.position], count)

    def _array(self, key: str) -> list[object] | Texts:
        kind, count = self.integer("I"), self.integer("Q")
        smallest = 8 if kind == _STRING else struct.calcsize("<" + _SCALARS.get(kind, "B"))
        if count * smallest > self._limit - self.position:
            raise self.error(f"is truncated: the metadata {key!r} claims {count} items")
        if kind == _STRING:
            return self._texts(key, count)
        if kind not in _SCALARS:
            raise self.error(f"has the metadata {key!r} with items of type {kind}, which is not supported")
        return list(struct.unpack(f"<{count}{_SCALARS[kind]}", self.take(count * smallest)))
