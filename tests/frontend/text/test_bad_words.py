"""Bad words become the token ids they have at the start of an output and behind a space."""

from __future__ import annotations

import asyncio

import pytest

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.sampling_params import MAX_BAD_WORDS, SamplingParams
from splitserve.engine_core.sequence_sampling import MAX_BAD_WORD_SEQUENCES, MAX_BAD_WORD_TOKENS
from splitserve.frontend.text import bad_words
from splitserve.frontend.text.bad_words import spell_bad_words, spellings
from tests.frontend.checkpoints import KINDS
from tests.frontend.text.conftest import TokenizerOf


@pytest.mark.parametrize("kind", ["byte_level", "with_bos", "sentencepiece", "metaspace"])
@pytest.mark.parametrize("word", ["the", " the", "hello", "you are", "ä", "!"])
def test_spellings_read_as_the_word_at_the_start_and_behind_a_space(
    tokenizer_of: TokenizerOf, kind: str, word: str
) -> None:
    tokenizer, bare = tokenizer_of(kind), word.lstrip(" ")
    found = spellings([word], tokenizer)
    assert bare in {tokenizer.decode(sequence) for sequence in found}
    before = tokenizer.encode("x", add_special_tokens=False)
    assert f"x {bare}" in {tokenizer.decode([*before, *sequence]) for sequence in found}


def test_a_space_before_the_word_makes_no_difference(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("byte_level")
    assert spellings(["quick"], tokenizer) == spellings(["  quick"], tokenizer)
    (only,) = spellings(["  "], tokenizer)
    assert tokenizer.decode(only) == "  "


@pytest.mark.parametrize("kind", list(KINDS))
def test_no_spelling_is_empty_or_holds_what_the_post_processor_adds(
    tokenizer_of: TokenizerOf, kind: str
) -> None:
    found = spellings(["hello", "x", "你好", "🙂"], tokenizer_of(kind))
    assert all(found)
    bos = tokenizer_of(kind).special_tokens.get("<|begin_of_text|>", -1)
    assert not any(bos in sequence for sequence in found)


def test_the_text_of_a_special_token_is_that_token(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("byte_level")
    assert spellings(["<|im_end|>"], tokenizer)[0] == (tokenizer.special_tokens["<|im_end|>"],)


async def test_sequences_given_by_hand_stay_and_none_is_sent_twice(tokenizer_of: TokenizerOf) -> None:
    tokenizer = tokenizer_of("byte_level")
    (bare, spaced) = spellings(["dog"], tokenizer)
    params = SamplingParams(bad_words=("dog", " dog"), bad_word_token_ids=((5, 6), spaced), top_k=3)
    spelled = await spell_bad_words(params, tokenizer)
    assert spelled == SamplingParams(bad_word_token_ids=((5, 6), spaced, bare), top_k=3)


async def test_many_words_are_spelled_off_the_event_loop(
    tokenizer_of: TokenizerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[int] = []

    async def in_thread(function: object, words: tuple[str, ...], tokenizer: object) -> list[tuple[int, ...]]:
        called.append(len(words))
        return spellings(words, tokenizer)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "to_thread", in_thread)
    tokenizer = tokenizer_of("byte_level")
    words = tuple(f"word{i}" for i in range(MAX_BAD_WORDS))
    spelled = await spell_bad_words(SamplingParams(bad_words=words), tokenizer)
    await spell_bad_words(SamplingParams(bad_words=("a",)), tokenizer)
    assert called == [MAX_BAD_WORDS]
    assert len(spelled.bad_word_token_ids) == MAX_BAD_WORD_SEQUENCES
    spelled.validate()


@pytest.mark.parametrize("word", ["a" * 4, "bad \ud800"])
def test_words_that_cannot_be_spelled_are_named(
    tokenizer_of: TokenizerOf, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setattr(bad_words, "MAX_BAD_WORD_TOKENS", 2)
    with pytest.raises(InvalidRequestError, match=r"bad_words\[1\]") as caught:
        spellings(["x", word], tokenizer_of("byte_level"))
    assert caught.value.param == "bad_words[1]"


def test_the_longest_word_of_plain_letters_is_within_the_bound(tokenizer_of: TokenizerOf) -> None:
    for kind in KINDS:
        assert max(map(len, spellings(["q" * 256, "é" * 128], tokenizer_of(kind)))) <= MAX_BAD_WORD_TOKENS
