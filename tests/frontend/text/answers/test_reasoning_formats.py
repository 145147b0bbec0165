"""Reasoning of every format, at every border, without tools and with them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitserve.frontend.text.answers.formats import AnswerFormats
from splitserve.frontend.text.answers.parser import AnswerRules
from tests.frontend.text.answers.samples import FORMATS, NOW, REASONING, TOOLS, Answer, parse

TAGGED = {name: tags for name, tags in REASONING.items() if tags.channels is None}
NOW_CALL = '<|tool_call|>[{"name": "now", "arguments": {}}]'
HERE = "Here is my thought process:\n\n"
# Format, text, what it says.
SAMPLES: list[tuple[str, str, Answer]] = [
    ("think", "<think>\nHm.\n</think>\n\nYes.", Answer("Yes.", "Hm.")),
    ("think", "<think>Hm.</think><response>Yes.</response>", Answer("<response>Yes.</response>", "Hm.")),
    ("mistral", "[THINK]Hm. [/THINK]Yes.", Answer("Yes.", "Hm.")),
    ("granite", f"{HERE}Hm.\n\nHere is my response:\n\nYes. ", Answer("Yes. ", "Hm.")),
    ("granite", "Here's my thought process: Hm.\nHere's my response: Yes.", Answer("Yes.", "Hm.")),
    ("granite", "Here is my thought process: Hm.\nHere's my response: Yes.", Answer("Yes.", "Hm.")),
    ("granite", f"{HERE}Here is my resp", Answer("", "Here is my resp")),
    ("granite", "Here is my thought.", Answer("Here is my thought.")),
    ("granite", "Here is my response: Yes.", Answer("Here is my response: Yes.")),
    ("granite", f"{HERE}Hm.\nHere is my response: {NOW_CALL}", Answer("", "Hm.", [NOW])),
    (
        "granite_think",
        "<think>Hm.</think>\n\n<response>\nYes.\n</response>\n",
        Answer("Yes.", "Hm."),
    ),
    ("granite_think", "<think>Hm.</think>Yes, <b>.", Answer("Yes, <b>.", "Hm.")),
    ("granite_think", "<think>Hm.</think><response>Yes.</resp", Answer("Yes.</resp", "Hm.")),
    ("granite_think", "<response>Yes.</response>", Answer("<response>Yes.</response>")),
    (
        "granite_think",
        f"<think>Hm.</think><response>Wait.\n{NOW_CALL}</response>",
        Answer("Wait.", "Hm.", [NOW]),
    ),
]
EACH = pytest.mark.parametrize(
    ("name", "text", "expected"), SAMPLES, ids=[f"{row[0]}-{row[1][:40]}" for row in SAMPLES]
)


def rules_of(name: str, *, has_tools: bool = True, in_reasoning: bool = False) -> AnswerRules:
    formats = AnswerFormats(REASONING[name], FORMATS["granite"] if has_tools else None)
    return AnswerRules(formats, TOOLS, in_reasoning)


def test_there_is_a_sample_of_every_format() -> None:
    assert {name for name, _, _ in SAMPLES} == set(TAGGED)


@EACH
def test_no_border_of_two_pieces_makes_a_difference(name: str, text: str, expected: Answer) -> None:
    for has_tools in [True] if expected.calls else [True, False]:
        rules = rules_of(name, has_tools=has_tools)
        assert parse(rules, list(text)) == expected
        for i in range(len(text) + 1):
            assert parse(rules, [text[:i], text[i:]]) == expected


@EACH
def test_reasoning_may_have_begun_in_the_prompt(name: str, text: str, expected: Answer) -> None:
    begin = next((tag for tag in REASONING[name].begins if text.startswith(tag)), None)
    if begin is not None:
        assert parse(rules_of(name, in_reasoning=True), list(text.removeprefix(begin))) == expected


@pytest.mark.parametrize("name", TAGGED)
@given(data=st.data(), has_tools=st.booleans(), in_reasoning=st.booleans())
def test_texts_made_of_tags_are_parsed_the_same_in_any_pieces(
    name: str, data: st.DataObject, has_tools: bool, in_reasoning: bool
) -> None:
    rules = rules_of(name, has_tools=has_tools, in_reasoning=in_reasoning)
    scraps = [
        *TAGGED[name].tags,
        *rules.tags,
        "Here",
        " is",
        " my ",
        "response:",
        "\n",
        " ",
        "x",
        "<",
        NOW_CALL,
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(scraps), max_size=12)))
    places = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    pieces = [text[first:last] for first, last in pairwise([0, *places, len(text)])]
    assert parse(rules, pieces) == parse(rules, [text])
