"""Token ids to text as they arrive: no half characters, and the same text however the ids were split up.

A `DecodeStream` of the tokenizers library re-decodes a window for every token, gives up with an "invalid
prefix" error on some id sequences and re-decodes ever more while bytes stay undecodable. Looking bytes up in
a table and feeding an incremental UTF-8 decoder does the same for the common decoders at a fixed cost per
token.
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from splitserve.frontend.text.decode_table import DecodeRules, Pieces
from splitserve.frontend.text.native_pieces import NativePieces
from splitserve.frontend.text.tokenizer_library import LibraryTokenizer

REPLACEMENT = "\ufffd"
_MAX_HELD_TOKENS = 16
_PER_BYTE = "splitserve.replace_each_byte"


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return REPLACEMENT * (error.end - error.start), error.end


codecs.register_error(_PER_BYTE, _replace_each_byte)


class TextState(NamedTuple):
    """A detokenizer in the middle of a text.

    Attributes:
        pieces: bytes per token id.
        held: of an unfinished character, at most three bytes.
        replace_each_byte: each undecodable byte shows as one U+FFFD, not each undecodable sequence.
    """

    pieces: NativePieces
    held: bytes
    replace_each_byte: bool


class Detokenizer(Protocol):
    """Decodes one sequence; owned by one stream."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text that these ids complete; bytes of an unfinished character are held back."""
        ...

    def finish(self) -> str:
        """Return what was held back, undecodable bytes as U+FFFD. Nothing may be pushed afterwards."""
        ...

    def state(self) -> TextState | None:
        """Return all that decoding on needs; None if only this object can do it."""
        ...

    def resume(self, held: bytes) -> None:
        """Go on where native code ended: with these bytes of an unfinished character."""
        ...

    def holds_back(self) -> bool:
        """Whether a character has begun that has not been given out."""
        ...


class ByteDetokenizer:
    """Detokenizer over a table of bytes per token; a constant cost per token.

    In a run of byte tokens ("<0xE4>") that holds both whole characters and stray bytes, the characters are
    kept and each stray byte reads U+FFFD, as sentencepiece itself decodes it; the tokenizers library blanks
    the whole run.
    """

    __slots__ = ("_errors", "_first_pieces", "_held", "_pieces", "_strip_left")

    def __init__(
        self,
        rules: DecodeRules,
        pieces: Pieces,
        first_pieces: Pieces | None,
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        """Begin behind a prompt, whose text is not given out.

        Args:
            rules: of the decoder.
            pieces: bytes per token id.
            first_pieces: the same for the first token of a text; None if it has no spelling of its own.
            prompt_token_ids: what comes before; none if the first token pushed begins the text. A character
                that they leave unfinished is given out when it is whole.
        """
        self._pieces = pieces
        self._first_pieces = first_pieces
        self._strip_left = rules.strip_left
        self._errors = _PER_BYTE if rules.byte_fallback else "replace"
        # Bytes of an unfinished character, at most three.
        self._held = b""
        if prompt_token_ids:
            self._pass_over(prompt_token_ids)

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text that these ids complete."""
        pieces = self._pieces
        if len(token_ids) == 1 and self._first_pieces is None:
            data = pieces[token_ids[0]]
        else:
            data = self._join([pieces[token_id] for token_id in token_ids], token_ids)
        if self._held:
            data = self._held + data
        text, num_read = codecs.utf_8_decode(data, self._errors)
        self._held = data[num_read:]
        return self._strip(text) if self._strip_left else text

    def finish(self) -> str:
        """Return an unfinished character as U+FFFD."""
        return self._strip(codecs.utf_8_decode(self._held, self._errors, True)[0])

    def state(self) -> TextState | None:
        """Return what decoding on needs; None as long as the beginning of the text has rules of its own."""
        if self._first_pieces is not None or self._strip_left:
            return None
        return TextState(self._pieces.native(), self._held, self._errors == _PER_BYTE)

    def resume(self, held: bytes) -> None:
        """Go on behind these held bytes."""
        self._held = held

    def holds_back(self) -> bool:
        """Whether there are bytes of an unfinished character."""
        return bool(self._held)

    def _pass_over(self, token_ids: Sequence[int]) -> None:
        # All that later text depends on: whether there is text before it, and where that ends.
        for token_id in token_ids:
            if self._first_pieces is None and not self._strip_left:
                break
            self.push((token_id,))
        self._held = self._unfinished(token_ids)

    def _unfinished(self, token_ids: Sequence[int]) -> bytes:
        """Return the bytes of the character in which these tokens end, b"" if they end with a whole one."""
        end = b""
        for token_id in reversed(token_ids):
            end = self._pieces[token_id][-3:] + end
            if len(end) >= 3:
                break
        begin = max(len(end) - 3, 0)
        while begin < len(end) and end[begin] < 0xC0:
            begin += 1
        return end[begin + codecs.utf_8_decode(end[begin:], self._errors)[1] :]

    def _join(self, data: list[bytes], token_ids: Sequence[int]) -> bytes:
        """Join the bytes of tokens; the first of a text that has any may be spelt in its own way."""
        for i, piece in enumerate(data):
            if piece and self._first_pieces is not None:
                data[i] = self._first_pieces[token_ids[i]]
                self._first_pieces = None
        return b"".join(data)

    def _strip(self, text: str) -> str:
        while text and self._strip_left:
            if text[0] != " ":
                self._strip_left = 0
            else:
                text = text[1:]
                self._strip_left -= 1
        return text


class WindowDetokenizer:
    """For decoders that only the library can run: decodes a short window with and without the new id.

    The window begins where text was last given out. Text is held while it ends in U+FFFD, for at most
    16 tokens, so the cost per token stays bounded.
    """

    def __init__(
        self,
        raw: LibraryTokenizer,
        hidden_ids: frozenset[int],
        vocab_size: int,
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        """Begin behind a prompt; hidden ids and those outside the vocabulary have no text."""
        self._raw = raw
        self._hidden_ids = hidden_ids
        self._vocab_size = vocab_size
        shown = (token_id for token_id in reversed(prompt_token_ids) if self._is_shown(token_id))
        self._window = list(itertools.islice(shown, _MAX_HELD_TOKENS))[::-1]
        self._num_read = len(self._window)

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text that these ids complete."""
        return "".join([self._push_one(token_id) for token_id in token_ids])

    def finish(self) -> str:
        """Return the text held back."""
        return self._take(self._decode(self._window))

    def state(self) -> TextState | None:
        """Return None: only the library decodes this."""
        return None

    def resume(self, held: bytes) -> None:
        """Not to be called, as state() never gave anything away."""
        raise AssertionError

    def holds_back(self) -> bool:
        """Whether ids have come whose text has not been given out."""
        return len(self._window) > self._num_read

    def _is_shown(self, token_id: int) -> bool:
        return token_id not in self._hidden_ids and 0 <= token_id < self._vocab_size

    def _push_one(self, token_id: int) -> str:
        if not self._is_shown(token_id):
            return ""
        self._window.append(token_id)
        text = self._decode(self._window)
        num_held = len(self._window) - self._num_read
        if text.endswith(REPLACEMENT) and num_held < _MAX_HELD_TOKENS:
            return ""
        return self._take(text)

    def _take(self, text: str) -> str:
        new = text[len(self._decode(self._window[: self._num_read])) :]
        if new:
            # Keep the ids of the text just given out: decoders join tokens depending on the one before.
            del self._window[: self._num_read]
            self._num_read = len(self._window)
        return new

    def _decode(self, token_ids: list[int]) -> str:
        return self._raw.decode(token_ids) if token_ids else ""
