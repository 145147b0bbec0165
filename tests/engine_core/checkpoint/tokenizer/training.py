"""Small vocabularies, made by the libraries that made the published ones, and what those libraries read."""

from __future__ import annotations

import base64
import io
import itertools
from functools import cache
from pathlib import Path

import sentencepiece
import tiktoken

LINES = [
    "Hello world, the quick brown fox jumps over the lazy dog. It's 12345 o'clock!",
    "the cat sat on the mat and the dog sat on the log; naïve café 你好 世界",
    "def main(argument):\n    return argument + 1  # a comment",
    "She sells sea shells by the sea shore, the shells she sells are surely sea shells.",
    "１２３ ＡＢＣ ﬁne ½ ㌔ ｶﾞ Å ё",  # noqa: RUF001
    "<0x41> <s> </s> <unk> ▁ a  b   c",
]


@cache
def sentencepiece_model(kind: str, **options: object) -> bytes:
    """Train a SentencePiece model; kind is "bpe" or "unigram", options are the trainer's."""
    model = io.BytesIO()
    settings: dict[str, object] = {
        "vocab_size": 420 if options.get("byte_fallback") else 150,
        "hard_vocab_limit": False,
        "minloglevel": 2,
        "required_chars": "<>/0x41sunk",
        "num_threads": 1,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        model_type=kind,
        **(settings | options),  # type: ignore[arg-type]
    )
    return model.getvalue()


@cache
def sentencepiece_library(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Return the library's reader of a model."""
    return sentencepiece.SentencePieceProcessor(model_proto=model)


@cache
def byte_ranks() -> dict[bytes, int]:
    """Return tokens of bytes with ranks, as byte-pair encoding finds them in the lines."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    words = [[bytes([byte]) for byte in line.encode()] for line in LINES]
    for rank in range(256, 400):
        counts: dict[tuple[bytes, bytes], int] = {}
        for word in words:
            for pair in itertools.pairwise(word):
                counts[pair] = counts.get(pair, 0) + 1
        best = max(counts, key=lambda pair: (counts[pair], pair))
        ranks[best[0] + best[1]] = rank
        words = [_joined(word, best) for word in words]
    return ranks


def _joined(word: list[bytes], pair: tuple[bytes, bytes]) -> list[bytes]:
    found: list[bytes] = []
    for token in word:
        if found and (found[-1], token) == pair:
            found[-1] += token
        else:
            found.append(token)
    return found


def write_ranks(path: Path, ranks: dict[bytes, int]) -> None:
    """Write a vocabulary as tiktoken does."""
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    path.write_text("".join(lines))


@cache
def tiktoken_library(pattern: str, size: int) -> tiktoken.Encoding:
    """Return the library's reader of the first tokens of byte_ranks()."""
    ranks = {token: rank for token, rank in byte_ranks().items() if rank < size}
    return tiktoken.Encoding("made", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
