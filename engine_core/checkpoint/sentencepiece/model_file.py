"""What a SentencePiece model's file says: its pieces, and how texts are prepared.

The file is one protobuf message, of which a few fields matter here: ModelProto in
https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from splitserve.engine_core.errors import ModelLoadError

_MAX_VARINT_BYTES = 10
_MAX_PIECES = 2**21
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Numbers of fields.
_PIECES, _TRAINER, _NORMALIZER, _DENORMALIZER = 1, 2, 3, 5
_TEXT, _SCORE, _TYPE = 1, 2, 3
_MODEL_TYPE, _SPACE_BEHIND, _UNK_ID, _BOS_ID, _EOS_ID, _PAD_ID = 3, 24, 40, 41, 42, 43
_CHARSMAP, _ADDS_PREFIX, _REMOVES_SPACES, _ESCAPES = 2, 3, 4, 5

Value = int | bytes


class ModelType(IntEnum):
    """How the pieces of a text are found."""

    UNIGRAM = 1
    BPE = 2
    WORD = 3
    CHAR = 4


class SentencePieceModel(NamedTuple):
    """A model.

    Attributes:
        pieces: their texts, by id; a space is U+2581 in them.
        scores: of the pieces, the best the highest.
        types: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 a byte.
        model_type: a ModelType, or what else the file has.
        unk_id, bos_id, eos_id, pad_id: -1 for none.
        charsmap: letters that are replaced by others before texts are cut, compiled; b"" for none.
        changes_output: letters are replaced in what is decoded.
        adds_prefix: a space is put before texts.
        puts_spaces_behind: spaces belong to the word before them, the one that is added too.
        removes_spaces: spaces at the ends of a text, and all but one in a row, are taken off.
        escapes_spaces: spaces are U+2581 in pieces.
    """

    pieces: list[str]
    scores: list[float]
    types: list[int]
    model_type: int
    unk_id: int
    bos_id: int
    eos_id: int
    pad_id: int
    charsmap: bytes
    changes_output: bool
    adds_prefix: bool
    puts_spaces_behind: bool
    removes_spaces: bool
    escapes_spaces: bool


def parse_model(data: bytes, where: str) -> SentencePieceModel:
    """Read a file's content.

    Args:
        data: all of it.
        where: the file, for errors.

    Raises:
        ModelLoadError: it is no such message, or has too many pieces.
    """
    try:
        return _parse(memoryview(data))
    except (ValueError, IndexError, struct.error) as error:
        raise ModelLoadError(f"{where} is not a SentencePiece model: {error}") from None


def _parse(data: memoryview) -> SentencePieceModel:
    pieces: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    specs: dict[int, dict[int, Value]] = {_TRAINER: {}, _NORMALIZER: {}, _DENORMALIZER: {}}
    for number, value in _fields(data):
        if number != _PIECES and number not in specs:
            continue
        if not isinstance(value, bytes):
            raise ValueError(f"field {number} has the wrong type")
        fields = dict(_fields(memoryview(value)))
        if number in specs:
            specs[number] |= fields
        else:
            if len(pieces) == _MAX_PIECES:
                raise ValueError(f"it has more than {_MAX_PIECES} pieces")
            pieces.append(_bytes(fields, _TEXT).decode())
            scores.append(_float(fields.get(_SCORE, 0)))
            types.append(_int(fields, _TYPE, 1))
    if not pieces:
        raise ValueError("it has no pieces")
    trainer, normalizer, denormalizer = specs.values()
    return SentencePieceModel(
        pieces,
        scores,
        types,
        model_type=_int(trainer, _MODEL_TYPE, ModelType.UNIGRAM),
        unk_id=_int(trainer, _UNK_ID, 0),
        bos_id=_int(trainer, _BOS_ID, 1),
        eos_id=_int(trainer, _EOS_ID, 2),
        pad_id=_int(trainer, _PAD_ID, -1),
        charsmap=_bytes(normalizer, _CHARSMAP),
        changes_output=bool(_bytes(denormalizer, _CHARSMAP)),
        adds_prefix=bool(_int(normalizer, _ADDS_PREFIX, 1)),
        puts_spaces_behind=bool(_int(trainer, _SPACE_BEHIND, 0)),
        removes_spaces=bool(_int(normalizer, _REMOVES_SPACES, 1)),
        escapes_spaces=bool(_int(normalizer, _ESCAPES, 1)),
    )


def _fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Return the fields of a message: varints as int32, all others as bytes."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            # A negative int32 is written as int64.
            yield number, (value & 0xFFFFFFFF) - ((value & 0x80000000) << 1)
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"a field of wire type {kind} at byte {at}")
        if size > end - at:
            raise ValueError(f"it ends within a field at byte {at}")
        yield number, bytes(data[at : at + size])
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"a number is too long at byte {at}")


def _bytes(fields: dict[int, Value], number: int) -> bytes:
    value = fields.get(number, b"")
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} has the wrong type")
    return value


def _int(fields: dict[int, Value], number: int, default: int) -> int:
    value = fields.get(number, default)
    if not isinstance(value, int):
        raise ValueError(f"field {number} has the wrong type")
    return value


def _float(value: Value) -> float:
    if isinstance(value, int):
        return 0.0
    found: float = struct.unpack("<f", value)[0]
    # NaN would put the merges into no order, and JSON has no infinity.
    if not math.isfinite(found):
        raise ValueError("a score is not a number")
    return found
