"""Answers that are messages on channels, at every border; texts in the style of gpt-oss."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.frontend.text.answers.calls import MAX_CALLS
from splitserve.frontend.text.answers.channel_format import HARMONY as CHANNELS
from splitserve.frontend.text.answers.deltas import CallArguments, CallStarted, ContentText, ReasoningText
from splitserve.frontend.text.answers.formats import TOOL_FORMATS, AnswerFormats
from splitserve.frontend.text.answers.parser import AnswerParser, AnswerRules
from splitserve.frontend.text.answers.text_source import MAX_NAME_CHARS
from tests.frontend.text.answers.samples import ADD, HARMONY, NOW, TOOLS, Answer, parse

TOOL_FORMAT = next(each for each in TOOL_FORMATS if each.name == "harmony")
RULES = AnswerRules(AnswerFormats(HARMONY, TOOL_FORMAT), TOOLS)

THOUGHT = "<|channel|>analysis<|message|>Hm, <b>.<|end|>"
FINAL = "<|channel|>final<|message|>"
COMMENTARY = "<|channel|>commentary"
NEXT = "<|start|>assistant"
CONSTRAINED = " <|constrain|>json<|message|>"
ADD_ARGUMENTS = '{"a": 1, "b": 2}'
ADD_CALL = f"{COMMENTARY} to=functions.add{CONSTRAINED}{ADD_ARGUMENTS}"

# Text, and what it says.
SAMPLES: list[tuple[str, Answer]] = [
    (f"{THOUGHT}{NEXT}{FINAL}2 + 2 = 4.\n<|return|>", Answer("2 + 2 = 4.\n", "Hm, <b>.")),
    (f"{THOUGHT}{NEXT}{FINAL}Yes.", Answer("Yes.", "Hm, <b>.")),
    (f"{FINAL} Yes. <|return|>", Answer(" Yes. ")),
    (f"{THOUGHT}{NEXT}{ADD_CALL}<|call|>", Answer("", "Hm, <b>.", [ADD])),
    (f"{THOUGHT}{NEXT}{ADD_CALL}", Answer("", "Hm, <b>.", [ADD])),
    (f" to=functions.add{COMMENTARY} json<|message|>{ADD_ARGUMENTS}<|call|>", Answer(calls=[ADD])),
    (
        f"{THOUGHT}{NEXT} to=functions.add{COMMENTARY}{CONSTRAINED}{ADD_ARGUMENTS}",
        Answer("", "Hm, <b>.", [ADD]),
    ),
    (f"{COMMENTARY} to=functions.add<|constrain|>json<|message|>{ADD_ARGUMENTS}", Answer(calls=[ADD])),
    (
        f"{COMMENTARY} to=functions.now code<|message|><|call|>{NEXT}{ADD_CALL}<|call|>",
        Answer(calls=[NOW, ADD]),
    ),
    (f"<|channel|>analysis to=functions.now{CONSTRAINED} {{}} <|call|>", Answer(calls=[NOW])),
    # Some models leave the word out; then it has to be a tool of the request.
    (f"{COMMENTARY} to=add{CONSTRAINED}{ADD_ARGUMENTS}<|call|>", Answer(calls=[ADD])),
    ("<|channel|>analysis to=python code<|message|>1 + 1<|call|>", Answer("", "1 + 1")),
    (
        f"{THOUGHT}{NEXT}{COMMENTARY}<|message|>I add.<|end|>{NEXT}{ADD_CALL}<|call|>",
        Answer("I add.", "Hm, <b>.", [ADD]),
    ),
    (
        f"{COMMENTARY}<|message|>I add.<|end|>{NEXT}{FINAL}Done.<|return|>",
        Answer("I add.\n\nDone."),
    ),
    (
        f"{THOUGHT}{NEXT}<|channel|>analysis<|message|>More.<|end|>{NEXT}{FINAL}Yes.",
        Answer("Yes.", "Hm, <b>.\n\nMore."),
    ),
    # The tag that ends a message is missing.
    (f"<|channel|>analysis<|message|>Hm.{NEXT}{FINAL}Yes.", Answer("Yes.", "Hm.")),
    (f"{THOUGHT}\n{NEXT}{FINAL}Yes.", Answer("Yes.", "Hm, <b>.")),
    (f"{NEXT}{FINAL}Yes.<|end|>", Answer("Yes.")),
    (f"{NEXT}<|message|>Yes.<|end|>", Answer("Yes.")),
    ("", Answer()),
]
# What has no header, is broken or cut off.
BROKEN: list[tuple[str, Answer]] = [
    ("Hello <b>there</b>.", Answer("Hello <b>there</b>.")),
    (" to= is how it begins", Answer(" to= is how it begins")),
    ("An end: <|channel", Answer("An end: <|channel")),
    (f"Plain.{NEXT}{FINAL}Yes.", Answer("Plain.\n\nYes.")),
    ("<|end|>x", Answer("<|end|>x")),
    (f"{THOUGHT}{NEXT}", Answer("", "Hm, <b>.")),
    (f"{THOUGHT}{NEXT}<|channel|>fin", Answer("", "Hm, <b>.")),
    (f"{THOUGHT}{NEXT}{COMMENTARY} to=functions.ad", Answer("", "Hm, <b>.")),
    ("<|channel|>analysis<|message|>Cut off in th", Answer("", "Cut off in th")),
    (f'{COMMENTARY} to=functions.add{CONSTRAINED}{{"a": 1', Answer(calls=[("add", '{"a": 1')])),
    (f"{COMMENTARY} to=functions.a,b{CONSTRAINED}{{}}<|call|>", Answer("{}")),
    (f"{COMMENTARY} to=browser{CONSTRAINED}{{}}<|call|>", Answer("{}")),
    (f"<|channel|>{'x' * MAX_NAME_CHARS}", Answer()),
    (f"<|channel|>{'x' * (MAX_NAME_CHARS + 20)}", Answer(f"<|channel|>{'x' * (MAX_NAME_CHARS + 20)}")),
]
EACH = pytest.mark.parametrize(
    ("text", "expected"), [*SAMPLES, *BROKEN], ids=[f"{row[0][:60]}" for row in [*SAMPLES, *BROKEN]]
)


@EACH
def test_an_answer_is_taken_apart(text: str, expected: Answer) -> None:
    assert parse(RULES, [text]) == expected


@EACH
def test_no_border_of_two_pieces_makes_a_difference(text: str, expected: Answer) -> None:
    for i in range(len(text) + 1):
        assert parse(RULES, [text[:i], text[i:]]) == expected
    assert parse(RULES, list(text)) == expected


@EACH
def test_wherever_it_is_cut_off_pieces_make_no_difference(text: str, expected: Answer) -> None:
    for end in range(len(text)):
        assert parse(RULES, list(text[:end])) == parse(RULES, [text[:end]])


SCRAPS = [
    *CHANNELS.tags,
    *("analysis", "final", "commentary", "assistant", " to=functions.add", " to=add", " to=python", " json"),
    *('{"a": 1}', "\n", " ", "to=", "x", "<|", "|>", THOUGHT, FINAL, NEXT, ADD_CALL),
]


@given(data=st.data(), begun=st.sampled_from(["", "reasoning", "content"]), has_tools=st.booleans())
def test_texts_made_of_tags_are_parsed_the_same_in_any_pieces(
    data: st.DataObject, begun: str, has_tools: bool
) -> None:
    formats = AnswerFormats(HARMONY, TOOL_FORMAT if has_tools else None)
    rules = AnswerRules(formats, TOOLS, begun == "reasoning", begun == "content")
    text = "".join(data.draw(st.lists(st.sampled_from(SCRAPS), max_size=14)))
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    pieces = [text[first:last] for first, last in pairwise([0, *places, len(text)])]
    assert parse(rules, pieces) == parse(rules, [text]) == parse(rules, list(text))


@given(text=st.text(st.characters(exclude_characters="<t")))
def test_text_without_a_tag_is_content_as_it_is(text: str) -> None:
    assert parse(RULES, list(text)) == Answer(text)


def test_everything_comes_as_soon_as_it_is_certain() -> None:
    parser = AnswerParser(RULES)
    assert parser.push("<|channel|>analysis<|mess") == []
    assert parser.push("age|>Let me") == [ReasoningText("Let me")]
    assert parser.push(" see.<|end") == [ReasoningText(" see.")]
    assert parser.push("|><|start|>assistant<|channel|>commentary to=functions.add json") == []
    assert parser.push("<|message|>") == [CallStarted(0, "add")]
    assert parser.push('{"a": ') == [CallArguments(0, '{"a":')]
    assert parser.push("1}<|call|>") == [CallArguments(0, " 1}")]
    assert parser.push("<|start|>assistant<|channel|>final<|message|>Yes") == [ContentText("Yes")]
    assert parser.push(" .<|return|>") == [ContentText(" .")]
    assert parser.finish() == []


def test_an_answer_may_begin_within_reasoning_or_the_answer() -> None:
    within = AnswerRules(RULES.formats, TOOLS, in_reasoning=True)
    assert parse(within, [f"Hm.<|end|>{NEXT}{FINAL}Yes."]) == Answer("Yes.", "Hm.")
    behind = AnswerRules(RULES.formats, TOOLS, in_content=True)
    assert parse(behind, ["Yes.<|return|>"]) == Answer("Yes.")


def test_without_tools_calls_are_content() -> None:
    rules = AnswerRules(AnswerFormats(HARMONY), TOOLS)
    assert parse(rules, [f"{THOUGHT}{NEXT}{ADD_CALL}<|call|>"]) == Answer(ADD_ARGUMENTS, "Hm, <b>.")


def test_an_operator_may_leave_reasoning_in_the_content() -> None:
    rules = AnswerRules(AnswerFormats(None, TOOL_FORMAT), TOOLS)
    text = f"{THOUGHT}{NEXT}{ADD_CALL}<|call|>{NEXT}{FINAL}Yes."
    assert parse(rules, [text]) == Answer("Hm, <b>.\n\nYes.", "", [ADD])


def test_calls_beyond_the_most_are_content() -> None:
    call = f"{COMMENTARY} to=functions.now{CONSTRAINED}{{}}<|call|>"
    answer = parse(RULES, [NEXT.join([call] * (MAX_CALLS + 2))])
    assert answer == Answer("{}\n\n{}", "", [NOW] * MAX_CALLS)


def test_all_tags_are_kept_in_the_text() -> None:
    assert AnswerRules(AnswerFormats(HARMONY)).tags == set(CHANNELS.tags)
    assert AnswerRules(AnswerFormats(None, TOOL_FORMAT)).tags == set(CHANNELS.tags)
