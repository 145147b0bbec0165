"""Edits that know nothing of what the bytes mean."""

from __future__ import annotations

from random import Random

# Beginnings of containers that never come, depth, a NaN, a pickle, ends of texts and lines.
_SNIPPETS = (
    *(b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\x91" * 40, b"\x81" * 20),
    *(b"\xcb\x7f\xf8" + bytes(6), b"\x80\x04\x95", b"\xd4\x01\x00", b"\xc1", b"\xc0", b"\xcf" + b"\xff" * 8),
    *(b"[" * 40, b"{", b"}", b"]", b'"', b"\\u", b"\\ud800", b"null", b"1e999", b"NaN", b"\xff", b"\0"),
    *(b"\r\n", b"\r\n\r\n", b"\n", b": ", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"-", b"9" * 30, b","),
)
MAX_BYTES = 200_000


def mutate_bytes(rng: Random, data: bytes, donor: bytes = b"") -> bytes:
    """One to four edits; the donor is something valid to copy from."""
    edited = bytearray(data)
    for _ in range(1 + int(rng.random() ** 2 * 4)):
        _edit(rng, edited, donor)
    return bytes(edited[:MAX_BYTES])


def _edit(rng: Random, data: bytearray, donor: bytes) -> None:
    place = int(rng.random() * (len(data) + 1))
    length = 1 + int(rng.random() ** 3 * 32)
    kind = int(rng.random() * 8)
    if kind == 0 and place < len(data):
        data[place] = int(rng.random() * 256)
    elif kind == 1 and place < len(data):
        data[place] ^= 1 << int(rng.random() * 8)
    elif kind == 2:
        del data[place:]
    elif kind == 3:
        del data[place : place + length]
    elif kind == 4:
        data[place:place] = rng.randbytes(length)
    elif kind == 5:
        data[place:place] = _SNIPPETS[int(rng.random() * len(_SNIPPETS))]
    elif kind == 6:
        data[place:place] = data[place : place + length] * (1 + int(rng.random() * 8))
    elif donor:
        start = int(rng.random() * len(donor))
        data[place : place + length] = donor[start : start + length]
