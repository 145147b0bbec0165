"""The sections of tokenizer.json for SentencePiece's pieces: how texts become letters, and letters ids."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from splitserve.engine_core.checkpoint.tokenizer.merges import implied_merges
from splitserve.engine_core.checkpoint.tokenizer.sections import Json, bpe

SPACE = "\u2581"
# More than a text begins with: all that there are.
_MAX_SPACES = 2**16


class Kind(IntEnum):
    """What a piece is, numbered as in SentencePiece's files and in GGUF."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Preparation(NamedTuple):
    """What is done with a text before it is cut into pieces.

    Attributes:
        charsmap: letters and what replaces them, in SentencePiece's compiled form; b"" for none.
        adds_prefix: a space is put before texts.
        is_prefix_first: only before the whole text, not behind special tokens within.
        removes_spaces: spaces at the ends of a text, and all but one in a row, are taken off.
        cut_out: pieces that are cut out of texts first of all.
    """

    charsmap: bytes = b""
    adds_prefix: bool = True
    is_prefix_first: bool = False
    removes_spaces: bool = False
    cut_out: tuple[str, ...] = ()


class Piece(NamedTuple):
    """One piece: its text (spaces are U+2581), its score (the best the highest), a Kind or another number."""

    text: str
    score: float
    kind: int


def preparing(preparation: Preparation) -> Json:
    """Return normalizer, pre-tokenizer and decoder."""
    steps: list[Json] = []
    if preparation.charsmap:
        charsmap = base64.b64encode(preparation.charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if preparation.removes_spaces:
        # In this order, and with a look back, so that no run of spaces takes quadratic time.
        steps += [_replace({"Regex": " {2,}"}, " "), _replace({"Regex": r"\A | \z"}, "")]
    prefix = preparation.adds_prefix and not preparation.is_prefix_first
    end = [_replace({"Regex": rf"(?<!{SPACE}){SPACE}+\z"}, "")] if preparation.removes_spaces else []
    spaces = _replace({"String": " "}, SPACE)
    steps += [spaces, *end]
    if prefix:
        steps.append({"type": "Prepend", "prepend": SPACE})
    cuts: list[Json] = [_first_space()] if preparation.adds_prefix and preparation.is_prefix_first else []
    if preparation.cut_out:
        longest_first = sorted(preparation.cut_out, key=lambda text: (-len(text), text))
        words = {"Regex": "|".join(map(re.escape, longest_first))}
        cuts.append({"type": "Split", "pattern": words, "behavior": "Isolated", "invert": False})
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts} if cuts else None,
        "decoder": _decoder(_MAX_SPACES if preparation.removes_spaces else int(preparation.adds_prefix)),
    }


def merging(
    pieces: Sequence[Piece], ranks: Sequence[float], unknown: str | None, where: str, *, whole: bool
) -> Json:
    """Return a model that merges the best neighbours.

    Args:
        pieces: by id.
        ranks: of the pieces, the best the lowest.
        unknown: text of the piece for letters that there are none of.
        where: the vocabulary's file, for errors.
        whole: a text that is cut out is not put together by merges.

    Raises:
        ModelLoadError: as implied_merges().
    """
    texts = [piece.text for piece in pieces]
    mergeable = [piece.kind in (Kind.NORMAL, Kind.USER_DEFINED) for piece in pieces]
    vocab = {text: token_id for token_id, text in enumerate(texts)}
    merges = implied_merges(texts, ranks, mergeable, where)
    return bpe(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True, ignore_merges=whole)


def most_likely(pieces: Sequence[Piece], unknown_id: int) -> Json:
    """Return a model that finds the pieces with the best sum of scores, as SentencePiece's unigram models do.

    The library looks for all pieces in texts, also for those that only the file may name ("<0x41>", "<s>"):
    they score less than their letters can. User-defined ones score what SentencePiece gives them.
    """
    scores = [piece.score for piece in pieces if piece.kind == Kind.NORMAL]
    best, worst = max(scores, default=0.0), min(0.0, *scores) if scores else 0.0
    longest = max(len(piece.text) for piece in pieces)
    hidden = (longest + 1) * min(worst, -1.0)
    vocab = []
    for text, score, kind in pieces:
        if kind == Kind.USER_DEFINED:
            score = len(text.encode()) * best - 0.1
        vocab.append([text, score if kind in (Kind.NORMAL, Kind.USER_DEFINED) else hidden])
    has_bytes = any(piece.kind == Kind.BYTE for piece in pieces)
    return {"type": "Unigram", "unk_id": unknown_id, "vocab": vocab, "byte_fallback": has_bytes}


def _replace(pattern: Json, content: str) -> Json:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _first_space() -> Json:
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}


def _decoder(num_spaces: int) -> Json:
    """Return a decoder that takes so many spaces off the beginning of a text."""
    decoders: list[Json] = [_replace({"String": SPACE}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    if num_spaces:
        decoders.append({"type": "Strip", "content": " ", "start": num_spaces, "stop": 0})
    return {"type": "Sequence", "decoders": decoders}
