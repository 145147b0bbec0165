"""Two texts as one prompt, as the tokenizer's template puts them together, cut if they are too long."""

from __future__ import annotations

from typing import NamedTuple

from tokenizers import Encoding

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.text.truncation import Truncation


class Pair(NamedTuple):
    """Two texts as one prompt.

    Attributes:
        token_ids: of both, with what stands around them.
        second_at: index of the first token that the template gives to the second text; 0 if it does not
            tell them apart.
    """

    token_ids: list[int]
    second_at: int


def cut_pair(first: Encoding, second: Encoding, truncation: Truncation, num_special: int) -> None:
    """Cut two texts in place so that they fit: the longer one, and both to a half if neither does alone.

    Args:
        first: without special tokens.
        second: likewise.
        truncation: of the prompt; tokens are lost on the right unless it says left.
        num_special: tokens that stand around them.
    """
    room = max(0, truncation.num_tokens - num_special)
    shorter, longer = sorted((first, second), key=len)
    kept = min(len(shorter), room // 2)
    side = truncation.side
    for text, size in ((shorter, kept), (longer, room - kept)):
        if len(text) > size:
            text.truncate(size, direction=side)


def pair_of(joined: Encoding) -> Pair:
    """Return the prompt of two joined texts.

    Raises:
        InvalidRequestError: its template has token types that no model here has.
    """
    types: list[int] = joined.type_ids
    second_at = types.index(1) if 1 in types else 0
    # Without a first text nothing may stand before the second.
    tail_type = 1 if 1 in types else 0
    if any(types[:second_at]) or any(kind != tail_type for kind in types[second_at:]):
        text = "the tokenizer's template for pairs has token types beside 0, then 1"
        raise InvalidRequestError(text, "model")
    return Pair(joined.ids, second_at)
