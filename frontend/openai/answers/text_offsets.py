"""Where does each token's text start in a completion choice? For text_offset of its logprobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from splitserve.frontend.text.detokenizer import Detokenizer
from splitserve.frontend.text.tokenizer import Tokenizer


class TextOffsets:
    """Counts characters as the tokens of one text go by."""

    def __init__(self, detokenizer: Detokenizer, start: int = 0) -> None:
        """Begin.

        Args:
            detokenizer: of these tokens alone.
            start: characters before their text.
        """
        self._detokenizer = detokenizer
        self._num_chars = start

    @property
    def next_offset(self) -> int:
        """Offset of the next token; a character that has begun belongs to the token that began it."""
        return self._num_chars + self._detokenizer.holds_back()

    def take(self, token_id: int) -> int:
        """Return the offset of a token, and go on behind it."""
        offset = self.next_offset
        self._num_chars += len(self._detokenizer.push((token_id,)))
        return offset


def prompt_offsets(tokenizer: Tokenizer, token_ids: Sequence[int], text: str | None) -> Iterator[int]:
    """Yield the offsets of an echoed prompt's tokens.

    Args:
        tokenizer: of the model.
        token_ids: of the prompt.
        text: as the client wrote it: what is added to it (BOS) is not seen there. None if it sent ids, which
            are echoed with their special tokens.
    """
    detokenizer = tokenizer.detokenizer(skip_special_tokens=False)
    if text is None:
        offsets = TextOffsets(detokenizer)
        yield from map(offsets.take, token_ids)
        return
    place = 0
    for token_id in token_ids:
        if token_id in tokenizer.special_ids and not text.startswith(
            tokenizer.token_text(token_id).text, place
        ):
            yield place
            continue
        has_begun = detokenizer.holds_back()
        begin, place = _find(text, place, detokenizer.push((token_id,)))
        yield min(begin + has_begun, len(text))


def _find(text: str, place: int, piece: str) -> tuple[int, int]:
    """Return where a token's text begins and ends; tokenizers add and drop spaces where words begin."""
    if not text.startswith(piece, place):
        if piece[0] == " " and text.startswith(piece[1:], place):
            return place, place + len(piece) - 1
        if text.startswith(" " + piece, place):
            return place + 1, place + 1 + len(piece)
    return place, min(place + len(piece), len(text))
