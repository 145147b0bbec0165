"""Which bytes a token id stands for, read off the decoder section of tokenizer.json.

Most checkpoints use one of two decoders, and both turn each token into bytes by itself:

    byte-level BPE     every character of the token's spelling names one byte
    sentencepiece      "▁" is a space, "<0xE4>" is the byte 0xE4, everything else its own UTF-8

So a table of bytes per id, filled as ids are met, decodes a token with one look-up. Any other decoder is left
to the tokenizers library (see frontend.text.detokenizer).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from splitserve.frontend.text.native_pieces import NativePieces
from splitserve.frontend.text.tokenizer_library import LibraryTokenizer

_Json = dict[str, object]


@dataclass(slots=True, frozen=True)
class DecodeRules:
    """How a decoder turns spellings into text, beyond the bytes of each token.

    Attributes:
        spell: spelling of a token to its bytes.
        spell_first: the same for the first token of a text.
        strip_left: spaces taken off the start of the whole text.
        byte_fallback: each undecodable byte shows as one U+FFFD, not each undecodable sequence.
    """

    spell: Callable[[str], bytes]
    spell_first: Callable[[str], bytes] | None = None
    strip_left: int = 0
    byte_fallback: bool = False


class Pieces(dict[int, bytes]):
    """Bytes by token id, filled on first use; b"" for unknown ids and, if so chosen, special ones.

    Holds at most one entry per id of the vocabulary and one per unknown id below `limit`.
    """

    def __init__(
        self, raw: LibraryTokenizer, spell: Callable[[str], bytes], skip: frozenset[int], limit: int
    ) -> None:
        super().__init__()
        self._raw = raw
        self._spell = spell
        self._skip = skip
        self._limit = limit
        self._native: NativePieces | None = None

    def native(self) -> NativePieces:
        """Return the same table for native code; made on the first call."""
        if self._native is None:
            self._native = NativePieces(self.__getitem__, self._limit)
        return self._native

    def __missing__(self, token_id: int) -> bytes:
        if not 0 <= token_id < self._limit:
            return b""
        spelling = None if token_id in self._skip else self._raw.id_to_token(token_id)
        piece = self[token_id] = b"" if spelling is None else self._spell(spelling)
        return piece


def read_decode_rules(decoder: object) -> DecodeRules | None:
    """Read the decoder section of tokenizer.json; None if only the library can run it."""
    steps = _flatten(decoder)
    kinds = [step.get("type") for step in steps]
    if kinds in (["ByteLevel"], ["ByteLevel", "Fuse"]):
        return DecodeRules(spell=spell_byte_level)
    if kinds == ["Metaspace"]:
        return _metaspace_rules(steps[0])
    return _sentencepiece_rules(steps)


def _flatten(decoder: object) -> list[_Json]:
    if not isinstance(decoder, dict):
        return []
    if decoder.get("type") != "Sequence":
        return [decoder]
    children = decoder.get("decoders")
    return [step for child in children for step in _flatten(child)] if isinstance(children, list) else []


def _byte_level_alphabet() -> dict[str, int]:
    """Return how byte-level BPE spells bytes: printable Latin-1 as itself, the rest moved up by 256."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_LEVEL = _byte_level_alphabet()


def spell_byte_level(spelling: str) -> bytes:
    """Turn a byte-level spelling into bytes; one with other characters (an added token) is its own UTF-8."""
    try:
        return bytes([_BYTE_LEVEL[char] for char in spelling])
    except KeyError:
        return spelling.encode()


def _byte_of(spelling: str) -> bytes | None:
    if len(spelling) == 6 and spelling.startswith("<0x") and spelling.endswith(">"):
        try:
            return bytes.fromhex(spelling[3:5])
        except ValueError:
            return None
    return None


def _metaspace_rules(step: _Json) -> DecodeRules:
    mark = str(step.get("replacement", "▁"))

    def spell(spelling: str) -> bytes:
        return spelling.replace(mark, " ").encode()

    def spell_first(spelling: str) -> bytes:
        return spelling.replace(mark, "").encode()

    return DecodeRules(spell, None if step.get("prepend_scheme") == "never" else spell_first)


def _sentencepiece_rules(steps: list[_Json]) -> DecodeRules | None:
    """Accept [Replace of one character]... [ByteFallback] Fuse [Strip at the left], in this order."""
    rest = list(steps)
    marks: list[tuple[str, str]] = []
    while rest and (mark := _single_replace(rest[0])) is not None:
        marks.append(mark)
        rest.pop(0)
    byte_fallback = bool(rest) and rest[0].get("type") == "ByteFallback"
    if byte_fallback:
        rest.pop(0)
    if not rest or rest.pop(0).get("type") != "Fuse":
        return None
    strip_left = 0
    if rest and rest[0].get("type") == "Strip" and rest[0].get("content") == " " and not rest[0].get("stop"):
        start = rest.pop(0).get("start")
        strip_left = start if isinstance(start, int) else 0
    if rest:
        return None

    def spell(spelling: str) -> bytes:
        for old, new in marks:
            spelling = spelling.replace(old, new)
        return (_byte_of(spelling) if byte_fallback else None) or spelling.encode()

    return DecodeRules(spell, strip_left=strip_left, byte_fallback=byte_fallback)


def _single_replace(step: _Json) -> tuple[str, str] | None:
    pattern, content = step.get("pattern"), step.get("content")
    if step.get("type") != "Replace" or not isinstance(pattern, dict) or not isinstance(content, str):
        return None
    old = pattern.get("String")
    return (old, content) if isinstance(old, str) and len(old) == 1 else None
