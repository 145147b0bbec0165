"""Do rows keep conversations apart and weigh what the assistant says?"""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from training.corpus import Conversation, conversations
from training.packing import ROW_TOKENS, USER_WEIGHT, pack, require_id, stack, token_weights
from training.tokenizer import render, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Return a small tokenizer, enough to tell the roles apart."""
    return train_tokenizer((render(item) for item in conversations(1, 300)), vocab_size=600)


def test_only_the_assistants_words_and_its_end_mark_count_fully(tokenizer: Tokenizer) -> None:
    text = render(
        Conversation([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}])
    )
    tokens = tokenizer.encode(text).ids
    weights = token_weights(tokens, tokenizer)
    spoken = [token for token, weight in zip(tokens, weights, strict=True) if weight == 1.0]
    assert tokenizer.decode(spoken, skip_special_tokens=False) == "Hello!<|im_end|>"
    assert set(weights) == {1.0, USER_WEIGHT}


def test_the_mark_that_begins_reasoning_is_not_learned_but_what_follows_is(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("<|im_start|>assistant\n<think>\nHm.\n</think>\nYes.<|im_end|>").ids
    weights = token_weights(tokens, tokenizer)
    think = tokens.index(require_id(tokenizer, "<think>"))
    assert weights[think] == 0.0
    assert set(weights[think + 1 :]) == {1.0}


def test_rows_are_full_length_with_one_segment_per_conversation(tokenizer: Tokenizer) -> None:
    texts = [render(item) for item in conversations(2, 40)]
    rows = list(pack(texts, tokenizer))
    fitting = [text for text in texts if len(tokenizer.encode(text).ids) <= ROW_TOKENS]
    assert all(len(row.tokens) == len(row.weights) == len(row.segments) == ROW_TOKENS for row in rows)
    assert sum(len(set(row.segments) - {-1}) for row in rows) == len(fitting)


def test_padding_has_no_weight(tokenizer: Tokenizer) -> None:
    row = next(pack([render(next(conversations(3, 1)))], tokenizer))
    pad = tokenizer.token_to_id("<|pad|>")
    for token, weight, segment in zip(row.tokens, row.weights, row.segments, strict=True):
        assert (token == pad) == (segment == -1)
        assert weight == 0.0 or segment >= 0


def test_a_conversation_longer_than_a_row_is_left_out(tokenizer: Tokenizer) -> None:
    long = render(
        Conversation([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "12" * 400}])
    )
    assert list(pack([long], tokenizer)) == []


def test_stacked_rows_have_one_line_each(tokenizer: Tokenizer) -> None:
    rows = list(pack((render(item) for item in conversations(4, 30)), tokenizer))[:2]
    tokens, weights, segments = stack(rows)
    assert tokens.shape == weights.shape == segments.shape == (2, ROW_TOKENS)
