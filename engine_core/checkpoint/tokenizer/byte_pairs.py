"""Byte-level BPE from byte strings and their ranks, as tiktoken has them."""

from __future__ import annotations

from collections.abc import Mapping

from splitserve.engine_core.checkpoint.tokenizer.merges import implied_merges
from splitserve.engine_core.checkpoint.tokenizer.sections import Json, byte_level
from splitserve.engine_core.checkpoint.tokenizer.splits import Split


def _spellings() -> list[str]:
    """Return the letter of each byte: printable Latin-1 as itself, the rest moved up by 256."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


_SPELLINGS = _spellings()
LETTERS = frozenset(_SPELLINGS)


def missing_byte(ranks: Mapping[bytes, int]) -> int | None:
    """Return a byte that no token stands for alone, so that it cannot be encoded; None if there is none."""
    return next((byte for byte in range(256) if bytes([byte]) not in ranks), None)


def ranked(
    split: Split, ranks: Mapping[bytes, int], where: str, first_id: int = 0
) -> tuple[Json, dict[str, int]]:
    """Return the sections of tokenizer.json, and ids by spelling.

    tiktoken takes a word that is a token as it is, and else joins the neighbours whose union has the lowest
    rank: the merges of all unions in the order of their ranks do the same.

    Args:
        split: how texts are cut into words.
        ranks: of the tokens.
        where: the vocabulary's file, for errors.
        first_id: id of rank 0.

    Raises:
        ModelLoadError: as implied_merges().
    """
    table = dict(enumerate(_SPELLINGS))
    tokens = sorted(ranks, key=ranks.__getitem__)
    spelled = [token.decode("latin-1").translate(table) for token in tokens]
    vocab = {text: first_id + ranks[token] for text, token in zip(spelled, tokens, strict=True)}
    merges = implied_merges(spelled, range(len(spelled)), [True] * len(spelled), where)
    return byte_level(split._replace(takes_whole_words=True), vocab, merges), vocab
