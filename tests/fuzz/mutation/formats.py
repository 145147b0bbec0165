"""How each kind of input is mutated: most often as what it means, otherwise as bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from random import Random

import msgspec

from tests.fuzz.mutation.raw import mutate_bytes
from tests.fuzz.mutation.values import mutate_value

Mutate = Callable[[Random, bytes, Sequence[bytes]], bytes]

_AS_VALUE = 0.75
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def mutate_msgpack(rng: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Return one message changed."""
    donor = corpus[int(rng.random() * len(corpus))]
    if rng.random() < _AS_VALUE:
        try:
            value, other = _decode(data), _decode(donor)
            for _ in range(1 + int(rng.random() ** 3 * 3)):
                value = mutate_value(rng, value, other)
            return _encode(value)
        except (msgspec.MsgspecError, UnicodeError, OverflowError, TypeError, ValueError, RecursionError):
            pass
    return mutate_bytes(rng, data, donor)


def mutate_json(rng: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Return one JSON text changed; it may say NaN and have numbers of any size."""
    donor = corpus[int(rng.random() * len(corpus))]
    if rng.random() < _AS_VALUE:
        try:
            value, other = json.loads(data), json.loads(donor)
            for _ in range(1 + int(rng.random() ** 3 * 3)):
                value = mutate_value(rng, value, other)
            return json.dumps(value, ensure_ascii=rng.random() < 0.5).encode()
        except (UnicodeError, TypeError, ValueError, RecursionError):
            pass
    return mutate_bytes(rng, data, donor)


def mutate_raw(rng: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Return one file with any of its bytes changed."""
    return mutate_bytes(rng, data, corpus[int(rng.random() * len(corpus))])


def mutate_safetensors(rng: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Return one file changed: its header as JSON, with an honest length most often, or any of its bytes."""
    if len(data) < 8 or rng.random() < 0.2:
        return mutate_bytes(rng, data, corpus[int(rng.random() * len(corpus))])
    length = min(struct.unpack("<Q", data[:8])[0], len(data) - 8)
    header = mutate_json(rng, data[8 : 8 + length], [b"{}", data[8 : 8 + length]])
    claimed = len(header) if rng.random() < 0.9 else int(rng.random() ** 4 * 2**40)
    rest = data[8 + length :]
    if rng.random() < 0.2:
        rest = rest[: int(rng.random() * (len(rest) + 1))] + bytes(int(rng.random() ** 2 * 64))
    return struct.pack("<Q", claimed) + header + rest
