"""Reasoning of at most so many tokens: counted exactly, ended by force, and free before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.frontend.text.grammar.bounded_thoughts import FREE, Budget
from tests.frontend.text.grammar.matching import (
    EOS,
    SPECIAL_TOKENS,
    VOCAB_SIZE,
    encode,
    made,
    may_follow,
    takes,
)

BEGIN, END, TOOL = (SPECIAL_TOKENS[text] for text in ("<think>", "</think>", "<tool>"))
A, B = encode("ab")
ALL = set(range(VOCAB_SIZE))
TAGS = ("<think>", "</think>")


def budget(num_tokens: int, begin_ids: Sequence[int] = (BEGIN,), end_rest: str = "") -> Budget:
    return Budget(num_tokens, tuple(begin_ids), END, end_rest, (EOS,))


def free(num_tokens: int, *, is_open: bool = False, begin_ids: Sequence[int] = (BEGIN,)) -> str:
    return made(FREE, None, (*TAGS, is_open), budget=budget(num_tokens, begin_ids))


class Reader:
    """What may follow the tokens of a free output, counted by hand."""

    def __init__(self, num_tokens: int, begin_ids: Sequence[int], *, is_open: bool) -> None:
        self._num_tokens, self._begin_ids = num_tokens, list(begin_ids)
        self._count: int | None = 0 if is_open else None
        self._place = 0
        self._was_ended = False

    def may_follow(self) -> set[int]:
        if self._count is not None:
            return {END} if self._count == self._num_tokens else ALL - {EOS}
        found = ALL - {EOS} if self._place else ALL
        may_begin = not self._was_ended or len(self._begin_ids) == 1
        is_last = self._place == len(self._begin_ids) - 1
        return found if may_begin or not is_last else found - {self._begin_ids[-1]}

    def take(self, token_id: int) -> None:
        if self._count is not None:
            self._was_ended |= token_id == END and self._count == self._num_tokens
            self._count = None if token_id == END else self._count + 1
        elif token_id != self._begin_ids[self._place]:
            self._place = 0
        elif self._place < len(self._begin_ids) - 1:
            self._place += 1
        else:
            self._place = 0
            # One token may be meant as text once the reasoning was ended by force.
            self._count = None if self._was_ended else 0


@pytest.mark.parametrize("begin_ids", [(BEGIN,), (BEGIN, A), (BEGIN, A, TOOL)], ids=len)
@given(num_tokens=st.integers(0, 5), is_open=st.booleans(), data=st.data())
def test_tokens_are_counted_and_the_end_is_forced(
    begin_ids: tuple[int, ...], num_tokens: int, is_open: bool, data: st.DataObject
) -> None:
    grammar = free(num_tokens, is_open=is_open, begin_ids=begin_ids)
    reader, ids = Reader(num_tokens, begin_ids, is_open=is_open), list[int]()
    for _ in range(data.draw(st.integers(0, 20))):
        allowed = reader.may_follow()
        assert may_follow(grammar, ids) == allowed
        likely = sorted(allowed & {BEGIN, END, A, B, TOOL})
        ids.append(data.draw(st.sampled_from(likely)))
        reader.take(ids[-1])
    assert may_follow(grammar, ids) == reader.may_follow()


def test_a_budget_of_nothing_ends_reasoning_at_once() -> None:
    assert may_follow(free(0, is_open=True), []) == {END}
    assert may_follow(free(0), []) == ALL
    assert may_follow(free(0), [A, BEGIN]) == {END}
    assert may_follow(free(0), [A, BEGIN, END]) == ALL


@pytest.mark.parametrize("num_tokens", [2**16, 2**31 - 1])
def test_large_budgets_cost_no_more(num_tokens: int) -> None:
    grammar = free(num_tokens, is_open=True)
    assert len(grammar) < 500
    assert may_follow(grammar, [A] * 30_000) == ALL - {EOS}
    if num_tokens == 2**16:
        assert may_follow(grammar, [A] * num_tokens) == {END}


@pytest.mark.parametrize("end_rest", ["", "<tool>x"])
@pytest.mark.parametrize("is_open", [True, False])
@given(num_tokens=st.integers(0, 6), num_thoughts=st.integers(0, 8))
def test_an_answer_of_a_schema_follows_the_forced_end(
    end_rest: str, is_open: bool, num_tokens: int, num_thoughts: int
) -> None:
    bounds = budget(num_tokens, end_rest=end_rest)
    grammar = made("regex", "[0-9]+", (TAGS[0], TAGS[1] + end_rest, is_open), budget=bounds)
    begin = "" if is_open else "<think>"
    text = f"{begin}{'ä' * (num_thoughts // 2)}{'a' * (num_thoughts % 2)}</think>{end_rest}"
    assert takes(grammar, f"{text}12") == (num_thoughts <= num_tokens)
    assert takes(grammar, f"{text}\n\n12") == (num_thoughts <= num_tokens)
    assert not takes(grammar, text)
    assert takes(grammar, "12") != is_open
    within = encode(begin) + [A] * min(num_tokens, num_thoughts)
    is_over = num_thoughts >= num_tokens
    expected = {END} if is_over else ALL - {*SPECIAL_TOKENS.values()} | {END}
    assert may_follow(grammar, within) == expected


VALUES: list[tuple[str, Any, str]] = [
    ("json", {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}, '{"x":1}'),
    ("choice", ["yes", "no"], "no"),
    ("grammar", 'start: "q" /[a-z]+/', "qa"),
]


@pytest.mark.parametrize(("kind", "value", "answer"), VALUES)
def test_every_kind_of_answer_may_stand_behind_a_budget(kind: str, value: Any, answer: str) -> None:
    grammar = made(kind, value, (*TAGS, False), budget=budget(3))
    assert takes(grammar, f"<think>abc</think>{answer}")
    assert takes(grammar, answer)
    assert not takes(grammar, f"<think>abcd</think>{answer}")
