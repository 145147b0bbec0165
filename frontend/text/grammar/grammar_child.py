"""The process in which grammars are made of what clients ask for, and checked.

Only llguidance, msgspec and the standard library may be imported here, so that it starts quickly and holds
nothing worth taking. What a grammar costs to read has no bound that its size tells.

Requests are JSON: a Query and a Vocabulary of grammar_process.py. The answer is the grammar, or JSON: words,
path and field.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from splitserve.frontend.text.call_grammar.demand import CallDemand
from splitserve.frontend.text.grammar.bounded_thoughts import Budget
from splitserve.frontend.text.grammar.build import GrammarBuilder
from splitserve.frontend.text.grammar.context import Reasoning
from splitserve.frontend.text.grammar.json_schema import find_fault
from splitserve.frontend.text.grammar.refusal import RefusalError
from splitserve.frontend.text.limited import child

GRAMMAR, REFUSED = b"=", b"!"
MAX_WORDS = 1000
# Processor time; workers do the same for each token of an output. Most take less than a thousandth of it.
MAX_MASK_S = 0.25
# Of a tenth of the weight: on a full machine the streams that are open go first.
NICE = 10
_NUM_BYTES = 256


class _ByteTokenizer:
    """A vocabulary of all bytes and the special tokens of a model, at their ids."""

    bos_token_id = None

    def __init__(self, special_tokens: dict[str, int], eos_token_id: int, vocab_size: int) -> None:
        special = {token_id: text.encode() for text, token_id in special_tokens.items()}
        special.setdefault(eos_token_id, b"<eos>")
        size = max(vocab_size, len(special) + _NUM_BYTES, max(special) + 1)
        free = [token_id for token_id in range(size) if token_id not in special][:_NUM_BYTES]
        self.eos_token_id = eos_token_id
        self.special_token_ids = sorted(special)
        self.ids = free
        by_id = special | {token_id: bytes([byte]) for byte, token_id in enumerate(free)}
        self.tokens = [by_id.get(token_id, b"") for token_id in range(max(size, free[-1] + 1))]

    def __call__(self, text: bytes) -> list[int]:
        return [self.ids[byte] for byte in text]


@lru_cache(maxsize=4)
def _tokenizer(special_tokens: str, eos_token_id: int, vocab_size: int) -> LLTokenizer:
    wrapped = TokenizerWrapper(_ByteTokenizer(json.loads(special_tokens), eos_token_id, vocab_size))
    return LLTokenizer(wrapped, slices=[])


def make_grammar(query: dict[str, Any], vocabulary: dict[str, Any]) -> str:
    """Return the checked grammar of a query.

    Raises:
        RefusalError: it is wrong, not served, or nothing fits it.
    """
    special = vocabulary["special_tokens"]
    builder = GrammarBuilder(special, query["whitespace_pattern"])
    kind, value = query["kind"], query["value"]
    reasoning = msgspec.convert(query["reasoning"], Reasoning | None)
    calls = msgspec.convert(query["calls"], CallDemand | None)
    budget = msgspec.convert(query["budget"], Budget | None)
    is_made = kind or calls is not None
    text = builder.build(kind, value, reasoning, calls, budget) if is_made else value
    if len(text) > query["max_chars"]:
        raise RefusalError(
            f"it must have at most {query['max_chars']} characters as a grammar, got {len(text)}"
        )
    tokenizer = _tokenizer(json.dumps(special), vocabulary["eos_token_id"], vocabulary["vocab_size"])
    matcher = LLMatcher(tokenizer, text, log_level=0)
    if matcher.is_error():
        raise _refusal(matcher.get_error(), builder)
    _check_start(matcher)
    if kind == "grammar" and reasoning is not None:
        # The reasoning has a first token even if nothing can follow it.
        alone = GrammarBuilder(special, None).build(kind, value, None, None, None)
        _check_start(LLMatcher(tokenizer, alone, log_level=0))
    return text


def _check_start(matcher: LLMatcher) -> None:
    """Refuse what has no first token, or is slow to find it: the reader of grammars does not look for it."""
    begun = time.process_time()
    matcher.compute_bitmask()
    if time.process_time() - begun > MAX_MASK_S:
        raise RefusalError(f"finding out what its first token may be takes more than {MAX_MASK_S} s")
    if matcher.is_error():
        words = matcher.get_error().partition("<state>")[0].strip()
        raise RefusalError("no text fits it" if words.startswith("NoExtension") else words)


def _refusal(message: str, builder: GrammarBuilder) -> RefusalError:
    for (field, path), schema in builder.schemas.items():
        found = find_fault(schema, message)
        if found or len(builder.schemas) == 1:
            return RefusalError(message, f"{path}.{found}".strip("."), field)
    return RefusalError(message)


def _answer(body: bytearray) -> tuple[bytes, str]:
    try:
        return GRAMMAR, make_grammar(*json.loads(body))
    except RefusalError as error:
        found = str(error), error.path, error.field
    except RecursionError:
        found = "it is nested too deeply", "", ""
    return REFUSED, json.dumps([text[:MAX_WORDS] for text in found])


def main(arguments: Sequence[str]) -> None:
    """Run with the arguments of frontend.text.limited.child.main(), where others leave room."""
    os.nice(NICE)
    child.main(arguments, _answer)


if __name__ == "__main__":
    main(sys.argv[1:])
