"""How do conversations become training rows? Several share a row, kept apart by segment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

ROW_TOKENS = 448
NUM_OPEN_ROWS = 16
# The user's words and the definitions of tools carry very little weight: they are hard to foresee, so their
# gradients would drown those of the answers, but they teach the embedding.
USER_WEIGHT = 0.02


@dataclass(slots=True)
class Row:
    """Tokens of several conversations, the loss weight of each token, and which conversation it is of."""

    tokens: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)

    def add(self, tokens: list[int], weights: list[float]) -> None:
        """Append one conversation as a new segment."""
        segment = self.segments[-1] + 1 if self.segments else 0
        self.tokens += tokens
        self.weights += weights
        self.segments += [segment] * len(tokens)

    def padded(self, pad_id: int) -> Row:
        """Return the row filled up to ROW_TOKENS with padding that has no weight and a segment of its own."""
        missing = ROW_TOKENS - len(self.tokens)
        return Row(
            self.tokens + [pad_id] * missing, self.weights + [0.0] * missing, self.segments + [-1] * missing
        )


def require_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token that the tokenizer must have."""
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None, token
    return token_id


def token_weights(tokens: list[int], tokenizer: Tokenizer) -> list[float]:
    """Return 1 for each token that the assistant writes, with its end mark, and USER_WEIGHT elsewhere.

    The mark that begins its reasoning has no weight: the template writes it, the model never should.
    """
    start, end = require_id(tokenizer, "<|im_start|>"), require_id(tokenizer, "<|im_end|>")
    header = tokenizer.encode("<|im_start|>assistant\n").ids
    weights = [USER_WEIGHT] * len(tokens)
    think = tokenizer.token_to_id("<think>")
    speaking = False
    for i, token in enumerate(tokens):
        if speaking:
            weights[i] = 0.0 if token == think else 1.0
        if token == end:
            speaking = False
        if tokens[i + 1 - len(header) : i + 1] == header and token != start:
            speaking = True
    return weights


def pack(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[Row]:
    """Yield rows of ROW_TOKENS tokens; a conversation longer than a row is left out.

    At most NUM_OPEN_ROWS rows are open at once; when none has room, the fullest is closed.
    """
    pad_id = require_id(tokenizer, "<|pad|>")
    open_rows: list[Row] = []
    for text in texts:
        tokens = tokenizer.encode(text).ids
        if len(tokens) > ROW_TOKENS:
            continue
        row = next((row for row in open_rows if len(row.tokens) + len(tokens) <= ROW_TOKENS), None)
        if row is None:
            if len(open_rows) == NUM_OPEN_ROWS:
                fullest = max(open_rows, key=lambda item: len(item.tokens))
                open_rows.remove(fullest)
                yield fullest.padded(pad_id)
            row = Row()
            open_rows.append(row)
        row.add(tokens, token_weights(tokens, tokenizer))
    for row in open_rows:
        yield row.padded(pad_id)


def stack(rows: list[Row]) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Return tokens, weights and segments, each of shape [B, ROW_TOKENS]."""
    return (
        np.array([row.tokens for row in rows], dtype=np.int64),
        np.array([row.weights for row in rows], dtype=np.float32),
        np.array([row.segments for row in rows], dtype=np.int64),
    )
