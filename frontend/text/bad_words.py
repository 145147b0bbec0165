"""Turns bad words into the token-id sequences that must not appear in the output."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.engine_core.sequence_sampling import MAX_BAD_WORD_TOKENS
from splitserve.frontend.text.tokenizer import Tokenizer

# Encoding takes 10 to 20 us per word and spelling and 0.1 to 0.2 us per character; more words than this are
# encoded in a thread.
_THREAD_FROM_WORDS = 16
_THREAD_FROM_CHARS = 1024


async def spell_bad_words(params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """Return the parameters with bad_words appended to bad_word_token_ids as token ids.

    Raises:
        InvalidRequestError: a word is not valid Unicode or has too many tokens; names the word.
    """
    words = params.bad_words
    max_chars = min(_THREAD_FROM_CHARS, tokenizer.max_chars_at_once)
    if not words or (len(words) < _THREAD_FROM_WORDS and sum(map(len, words)) < max_chars):
        spelled = spellings(words, tokenizer)
    else:
        spelled = await asyncio.to_thread(spellings, words, tokenizer)
    sequences = tuple(dict.fromkeys((*params.bad_word_token_ids, *spelled)))
    return msgspec.structs.replace(params, bad_words=(), bad_word_token_ids=sequences)


def spellings(words: Sequence[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Return each word's token ids, both at the start of an output and after a space.

    Leading spaces of a word make no difference. A special token's text ("<|im_end|>") is that token. A word
    whose characters the tokenizer drops has no spelling.

    Raises:
        InvalidRequestError: as spell_bad_words().
    """
    found: list[tuple[int, ...]] = []
    for i, word in enumerate(words):
        bare = word.lstrip(" ")
        for text in (bare, " " + bare) if bare else (word,):
            found.append(_spelling(i, text, tokenizer))
    return [sequence for sequence in found if sequence]


def _spelling(i: int, text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    try:
        token_ids = tokenizer.encode(text, add_special_tokens=False, parse_special_tokens=True)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"bad_words[{i}]: {error}", f"bad_words[{i}]") from None
    if len(token_ids) > MAX_BAD_WORD_TOKENS:
        raise InvalidRequestError(
            f"bad_words[{i}] must have at most {MAX_BAD_WORD_TOKENS} tokens, got {len(token_ids)}",
            f"bad_words[{i}]",
        )
    return tuple(token_ids)
