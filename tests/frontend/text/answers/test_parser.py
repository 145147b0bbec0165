"""Answers taken apart: every family, every way to cut the text, and what is no call after all."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.frontend.text.answers.calls import MAX_CALLS
from splitserve.frontend.text.answers.deltas import CallArguments, CallStarted, ContentText, ReasoningText
from splitserve.frontend.text.answers.formats import AnswerFormats
from splitserve.frontend.text.answers.parser import AnswerParser, AnswerRules
from splitserve.frontend.text.answers.text_source import MAX_HELD, MAX_NAME_CHARS
from tests.frontend.text.answers.samples import (
    ADD,
    BROKEN,
    FORMATS,
    NOW,
    SAMPLES,
    THINK,
    Answer,
    parse,
    rules_of,
)

ALL = [*SAMPLES, *BROKEN]
EACH = pytest.mark.parametrize(
    ("name", "text", "expected"), ALL, ids=[f"{row[0]}-{row[1][:30]}" for row in ALL]
)


def test_there_is_a_sample_of_every_family() -> None:
    assert {name for name, _, _ in SAMPLES} == set(FORMATS)


@EACH
def test_an_answer_is_taken_apart(name: str, text: str, expected: Answer) -> None:
    assert parse(rules_of(name), [text]) == expected


@EACH
def test_no_border_of_two_pieces_makes_a_difference(name: str, text: str, expected: Answer) -> None:
    for i in range(len(text) + 1):
        assert parse(rules_of(name), [text[:i], text[i:]]) == expected
    assert parse(rules_of(name), list(text)) == expected


@EACH
def test_wherever_it_is_cut_off_pieces_make_no_difference(name: str, text: str, expected: Answer) -> None:
    for end in range(len(text)):
        assert parse(rules_of(name), list(text[:end])) == parse(rules_of(name), [text[:end]])


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_texts_made_of_tags_and_json_are_parsed_the_same_in_any_pieces(
    name: str, data: st.DataObject
) -> None:
    rules = rules_of(name, in_reasoning=data.draw(st.booleans()))
    scraps = [
        *sorted(rules.tags),
        *'{}[]",:;( \n',
        '"name": "add"',
        '"arguments": ',
        '{"a": 1}',
        "add",
        "now()",
    ]
    whole = [text for family, text, _ in SAMPLES if family == name]
    text = "".join(data.draw(st.lists(st.sampled_from([*scraps, *whole]), max_size=12)))
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    borders = [0, *places, len(text)]
    pieces = [text[first:last] for first, last in pairwise(borders)]
    assert parse(rules, pieces) == parse(rules, [text])


@pytest.mark.parametrize("name", FORMATS)
@given(text=st.text(st.characters(exclude_characters="<[{f")))
def test_text_without_the_beginning_of_a_tag_is_content_as_it_is(name: str, text: str) -> None:
    assert parse(rules_of(name), list(text)) == Answer(text)


def test_content_reasoning_and_arguments_come_as_soon_as_they_are_certain() -> None:
    parser = AnswerParser(rules_of("hermes"))
    assert parser.push("<think>") == []
    assert parser.push("Let me") == [ReasoningText("Let me")]
    assert parser.push(" see </th") == [ReasoningText(" see")]
    assert parser.push("ink>Yes") == [ContentText("Yes")]
    assert parser.push(', <tool_call>\n{"name": "add", ') == [ContentText(",")]
    assert parser.push('"arguments": ') == [CallStarted(0, "add")]
    assert parser.push('{"a": ') == [CallArguments(0, '{"a": ')]
    assert parser.push("1}") == [CallArguments(0, "1}")]
    assert parser.push("}\n</tool_call>") == []
    assert parser.finish() == []


def test_a_long_text_argument_between_tags_is_given_out_as_it_comes() -> None:
    parser = AnswerParser(rules_of("qwen3_coder"))
    parser.push("<tool_call><function=say><parameter=text>")
    assert parser.push('Say "a') == [CallArguments(0, 'Say \\"a')]


def test_an_answer_may_begin_within_reasoning() -> None:
    rules = rules_of("hermes", in_reasoning=True)
    assert parse(rules, ["Hm.\n</think>\n\nYes."]) == Answer("Yes.", "Hm.")
    # Some models write the tag again that their template wrote.
    assert parse(rules, ["<think>\nHm.\n</think>\n\nYes."]) == Answer("Yes.", "Hm.")


def test_without_tools_calls_are_content_and_without_a_format_all_is() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    assert parse(AnswerRules(AnswerFormats(THINK)), [f"<think>a</think> {call} "]) == Answer(f"{call} ", "a")
    assert parse(AnswerRules(AnswerFormats()), ["<think> a", call]) == Answer(f"<think> a{call}")


def test_calls_beyond_the_most_are_content() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    answer = parse(rules_of("hermes"), [call * (MAX_CALLS + 2)])
    assert answer == Answer(call * 2, "", [NOW] * MAX_CALLS)


@pytest.mark.parametrize("num_chars", [MAX_HELD - 40, MAX_HELD + 1])
def test_so_much_is_held_for_a_call_without_a_name(num_chars: int) -> None:
    text = '<tool_call>{"note": "%s", "name": "now"}</tool_call>' % ("x" * num_chars)
    expected = Answer(calls=[NOW]) if num_chars < MAX_HELD - len(text) + num_chars + 13 else Answer(text)
    assert parse(rules_of("hermes"), [text]) == expected
    assert parse(rules_of("hermes"), list(text)) == expected


def test_whitespace_before_a_tag_is_held_up_to_a_bound() -> None:
    parser = AnswerParser(rules_of("hermes"))
    parser.push("a")
    assert parser.push(" " * (MAX_HELD + 5)) == [ContentText(" " * 5)]


def test_arguments_are_not_bounded() -> None:
    text = "x" * (3 * MAX_HELD)
    call = f'<tool_call>{{"name": "say", "arguments": {{"text": "{text}"}}}}</tool_call>'
    assert parse(rules_of("hermes"), [call]).calls == [("say", f'{{"text": "{text}"}}')]


def test_a_tag_inside_reasoning_begins_no_call() -> None:
    text = f'<think>I write <tool_call>{{"name": "{ADD[0]}"}}.</think>Ok'
    assert parse(rules_of("hermes"), [text]) == Answer("Ok", 'I write <tool_call>{"name": "add"}.')


@pytest.mark.parametrize(
    "value",
    ["-" * 9000 + "1", "(" * 3000 + "1" + ")" * 3000, "x" + ".a" * 8000, "1+" * 8000 + "1", "9" * 9000],
)
def test_a_python_call_that_python_cannot_bear_is_content(value: str) -> None:
    text = f"[add(a={value})]"
    assert parse(rules_of("pythonic"), [text]) == Answer(text)


@pytest.mark.parametrize("num_chars", [256, 257, MAX_NAME_CHARS, MAX_NAME_CHARS + 1])
def test_prose_behind_a_tag_is_not_held_for_a_name(num_chars: int) -> None:
    name, rules = "x" * num_chars, rules_of("mistral")
    text = f"[TOOL_CALLS]{name}[ARGS]{{}}"
    expected = Answer(calls=[(name, "{}")]) if num_chars <= 256 else Answer(text)
    assert parse(rules, [text]) == parse(rules, list(text)) == expected
    parser = AnswerParser(rules)
    assert parser.push("[TOOL_CALLS]" + "x" * (MAX_NAME_CHARS + 20)) != []
