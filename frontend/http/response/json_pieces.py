"""One JSON text in pieces: long lists and texts are produced and encoded only while it is being sent.

A struct is encoded with a placeholder (a hole) for each such part, and the holes are filled in order. A hole
is a byte that no JSON text contains, with the part's number, so parts may be created in any order. Items of a
list may have holes of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar, cast

import msgspec

from splitserve.frontend.http.slices import SLICE_VALUES

T = TypeVar("T")

# Pieces smaller than this are joined with the next one.
MIN_PIECE_BYTES = 4096
_HOLE = re.compile(rb"\x00(\d+)\x00")

_encode = msgspec.json.Encoder().encode


class JsonPieces:
    """Encodes one value; its placeholders may be used only in that value."""

    def __init__(self) -> None:
        self._parts: dict[int, Iterator[bytes]] = {}
        self._num_parts = 0

    def long_list(self, items: Iterable[T], num_items: int, values_per_item: int = 1) -> list[T]:
        """Return a list, or a placeholder if it is too long for a slice.

        Args:
            items: read once, now or while the text is sent.
            num_items: number of items.
            values_per_item: cost of producing and encoding one item, in values (see frontend.http.slices).
        """
        if num_items * values_per_item <= SLICE_VALUES:
            return list(items)
        return cast(list[T], self._hole(self._list(iter(items), max(1, SLICE_VALUES // values_per_item))))

    def ids(self, token_ids: Sequence[int]) -> list[int]:
        """Return token ids as long_list() does."""
        return self.long_list(token_ids, len(token_ids))

    def long_text(self, texts: Iterable[str]) -> str:
        """Return a placeholder for a text that is produced in pieces.

        Args:
            texts: its pieces, each at most a slice's worth; read while the text is sent.
        """
        return cast(str, self._hole(_text(texts)))

    def fill(self, text: bytes) -> Iterator[bytes]:
        """Yield a text with its holes filled; each step takes about a slice.

        Args:
            text: JSON text of a value with placeholders, or a text that contains one.
        """
        held: list[bytes] = []
        num_held = 0
        for piece in self._fill(text):
            held.append(piece)
            num_held += len(piece)
            if num_held >= MIN_PIECE_BYTES:
                yield b"".join(held)
                held, num_held = [], 0
        if held:
            yield b"".join(held)

    @property
    def has_parts(self) -> bool:
        """Whether anything is left to be produced while the text is sent."""
        return self._num_parts > 0

    def _hole(self, part: Iterator[bytes]) -> msgspec.Raw:
        number = self._num_parts
        self._num_parts += 1
        self._parts[number] = part
        return msgspec.Raw(b"\x00%d\x00" % number)

    def _fill(self, text: bytes) -> Iterator[bytes]:
        first, *rest = _HOLE.split(text)
        yield first
        for number, after in zip(rest[::2], rest[1::2], strict=True):
            yield from self._parts.pop(int(number))
            yield after

    def _list(self, items: Iterator[T], num_per_slice: int) -> Iterator[bytes]:
        before = b"["
        while batch := list(islice(items, num_per_slice)):
            yield from self._fill(before + _encode(batch)[1:-1])
            before = b","
        yield b"]" if before == b"," else b"[]"


def _text(texts: Iterable[str]) -> Iterator[bytes]:
    yield b'"'
    for text in texts:
        yield _encode(text)[1:-1]
    yield b'"'
