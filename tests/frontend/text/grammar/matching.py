"""What a grammar takes, asked of llguidance with a vocabulary of bytes and a few special tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from splitserve.frontend.text.grammar.bounded_thoughts import Budget
from splitserve.frontend.text.grammar.grammar_child import make_grammar

EOS = 0
VOCAB_SIZE = 400
SPECIAL_TOKENS = {"<eos>": EOS, "<think>": 300, "</think>": 301, "[THINK]": 5, "<tool>": 6, "</tool>": 7}
_FIRST_BYTE = 10


class _Bytes:
    eos_token_id = EOS
    bos_token_id = None

    def __init__(self) -> None:
        special = {token_id: text.encode() for text, token_id in SPECIAL_TOKENS.items()}
        by_id = special | {_FIRST_BYTE + byte: bytes([byte]) for byte in range(256)}
        self.special_token_ids = sorted(special)
        self.tokens = [by_id.get(token_id, b"") for token_id in range(VOCAB_SIZE)]

    def __call__(self, text: bytes) -> list[int]:
        return [_FIRST_BYTE + byte for byte in text]


TOKENIZER = LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])


def encode(text: str) -> list[int]:
    """Return token ids; the texts of special tokens are these."""
    pattern = "(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")"
    ids: list[int] = []
    for part in re.split(pattern, text):
        special = SPECIAL_TOKENS.get(part)
        ids += [special] if special is not None else [_FIRST_BYTE + byte for byte in part.encode()]
    return ids


def takes(grammar: str, text: str) -> bool:
    """Tell whether a text is a whole output of a grammar."""
    matcher = LLMatcher(TOKENIZER, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = encode(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def may_follow(grammar: str, ids: Sequence[int]) -> set[int]:
    """Return the tokens that may follow others, which the grammar takes."""
    matcher = LLMatcher(TOKENIZER, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    assert matcher.try_consume_tokens(list(ids)) == len(ids)
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def made(
    kind: str,
    value: object,
    reasoning: tuple[str, str, bool] | None = None,
    whitespace_pattern: str | None = None,
    budget: Budget | None = None,
    otherwise: str = "",
) -> str:
    """Return the grammar that the child process makes."""
    query: dict[str, Any] = {
        "kind": kind,
        "value": value,
        "reasoning": reasoning and (*reasoning, otherwise),
        "calls": None,
        "budget": budget,
        "whitespace_pattern": whitespace_pattern,
        "max_chars": 2**18,
    }
    vocabulary = {"special_tokens": SPECIAL_TOKENS, "vocab_size": VOCAB_SIZE, "eos_token_id": EOS}
    return make_grammar(query, vocabulary)
