"""Tokens of reasoning, counted by the place of their text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.frontend.text.answers.formats import AnswerFormats, ReasoningFormat
from splitserve.frontend.text.answers.parser import AnswerParser, AnswerRules
from splitserve.frontend.text.answers.reasoning_tokens import ReasoningTokens
from tests.frontend.http.fake_pool import ByteTokenizer
from tests.frontend.text.answers.samples import HARMONY, THINK


def count(
    text: str,
    sizes: list[int],
    *,
    tags: ReasoningFormat = THINK,
    in_reasoning: bool = False,
    lag: int = 0,
) -> int:
    """Count with one token per byte, pieces of these sizes, and text that comes `lag` tokens late."""
    tokenizer, token_ids = ByteTokenizer(), list(text.encode())
    parser = AnswerParser(AnswerRules(AnswerFormats(tags), {}, in_reasoning))
    tokens, decoder = ReasoningTokens(parser, tokenizer.detokenizer()), tokenizer.detokenizer()
    first, num_pushed = 0, 0
    for size in [*sizes, len(token_ids)]:
        tokens.add(token_ids[first : first + size])
        first = min(first + size, len(token_ids))
        late = first if first == len(token_ids) else max(num_pushed, first - lag)
        parser.push(decoder.push(token_ids[num_pushed:late]))
        num_pushed = late
        tokens.settle()
    parser.finish()
    tokens.settle()
    return tokens.count


@pytest.mark.parametrize(
    ("text", "in_reasoning", "expected"),
    [
        ("<think>\nabc d\n</think>\n\nyes", False, 5),
        ("abc d\n</think>\n\nyes", True, 5),
        ("<think>cut o", False, 5),
        ("no reasoning", False, 0),
        ("<think>\n\n</think>hi", False, 0),
        ("<think>äö</think>ü", False, 4),
        ("abc </thin", True, 10),
    ],
)
def test_tokens_count_whose_text_is_reasoning(text: str, in_reasoning: bool, expected: int) -> None:
    assert count(text, [], in_reasoning=in_reasoning) == expected
    assert count(text, [1] * 100, in_reasoning=in_reasoning) == expected


@given(sizes=st.lists(st.integers(0, 6), max_size=12), lag=st.integers(0, 5))
def test_pieces_and_late_text_make_no_difference(sizes: list[int], lag: int) -> None:
    assert count("<think>\nä b</ c\n</think>\n\nyes", sizes, lag=lag) == 8


MESSAGES = (
    "<|channel|>analysis<|message|>\nä b<|end|>\n<|start|>assistant<|channel|>analysis<|message|>abc<|end|>"
    "<|start|>assistant<|channel|>final<|message|>yes<|return|>"
)


@given(sizes=st.lists(st.integers(0, 9), max_size=20), lag=st.integers(0, 5))
def test_reasoning_in_several_messages_is_counted(sizes: list[int], lag: int) -> None:
    assert count(MESSAGES, sizes, tags=HARMONY, lag=lag) == len("\nxx babc")
