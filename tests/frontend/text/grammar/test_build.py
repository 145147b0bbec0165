"""The grammars of structured outputs take what was asked for and nothing else; what is wrong is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from splitserve.frontend.text.grammar import grammar_child
from splitserve.frontend.text.grammar.refusal import RefusalError
from tests.frontend.text.grammar.matching import made, takes

ONE: dict[str, Any] = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
TAGS = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<fn=a>", "schema": ONE, "end": "</fn>"},
        {"begin": "<fn=b>", "schema": {"type": "null"}, "end": "</fn>"},
    ],
    "triggers": ["<fn="],
}


def tag(form: dict[str, Any]) -> dict[str, Any]:
    return {"type": "structural_tag", "format": form}


CASES: list[tuple[str, Any, list[str], list[str]]] = [
    ("json", ONE, ['{"x":1}'], ['{"x": 1}', "{}", '{"x":"1"}']),
    ("json", json.dumps(ONE), ['{"x":1}'], ["{}"]),
    ("json", True, ["3", '[1,{"a":null}]'], ["[1, 2]", ""]),
    ("json_object", True, ["{}", '{"a":[1]}'], ["3", "[]"]),
    ("json", {"type": "array", "items": {"$ref": "#"}}, ["[[],[[]]]"], ["[1]"]),
    ("regex", "a/b|c\\/d|[/]x", ["a/b", "c/d", "/x"], ["a", "a/bc/d"]),
    ("regex", "a\nb\\\nc\\\\", ["a\nb\nc\\"], ["anbnc"]),
    ("choice", ["a", 'b "q"\n\\', "é\x01😀", "a/b"], ["a", 'b "q"\n\\', "é\x01😀", "a/b"], ["", "c", "aa"]),
    ("choice", ["<think>"], [], ["<think>"]),
    ("grammar", 'start: "a" b\nb: /[0-9]+/', ["a12"], ["a", "b"]),
    ("grammar", 'root ::= "a" b\nb ::= [0-9]+', ["a12"], ["a", "b"]),
    ("grammar", 'start: <think> "a"', ["<think>a"], ["a"]),
    (
        "structural_tag",
        TAGS,
        ["hi", 'a <fn=a>{"x":1}</fn> <fn=b>null</fn>.'],
        ["<fn=a>{}", "<fn=c>", "<fn=b>null"],
    ),
    (
        "structural_tag",
        {
            **TAGS,
            "structures": [{"begin": "<tool>a", "schema": ONE, "end": "</tool>"}],
            "triggers": ["<tool>"],
        },
        ["hi", 'hi<tool>a{"x":1}</tool>.'],
        ["<tool>b", '<tool>a{"x":1}'],
    ),
    ("structural_tag", json.dumps(tag({"type": "json_schema", "json_schema": ONE})), ['{"x":1}'], ["{}"]),
    (
        "structural_tag",
        tag(
            {
                "type": "sequence",
                "elements": [
                    {"type": "const_string", "value": "A<tool>"},
                    {
                        "type": "or",
                        "elements": [
                            {"type": "regex", "pattern": "x/y"},
                            {"type": "const_string", "value": "z"},
                        ],
                    },
                    {"type": "any_text"},
                ],
            }
        ),
        ["A<tool>x/y...", "A<tool>z"],
        ["Ax/y", "A<tool>q"],
    ),
    (
        "structural_tag",
        tag({"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"}),
        ["<t>a</t>"],
        ["<t>a", "<t>a</t>b</t>"],
    ),
    (
        "structural_tag",
        tag({"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</tool>"}),
        ["<t>a</tool>"],
        ["<t>a"],
    ),
    (
        "structural_tag",
        tag(
            {
                "type": "triggered_tags",
                "triggers": ["<t"],
                "tags": [
                    {"begin": "<t>", "content": {"type": "json_schema", "json_schema": ONE}, "end": "</t>"}
                ],
                "at_least_one": True,
            }
        ),
        ['a<t>{"x":1}</t>b'],
        ["a", "<t>{}</t>"],
    ),
]


@pytest.mark.parametrize(("kind", "value", "good", "bad"), CASES, ids=lambda value: str(value)[:30])
def test_a_grammar_takes_what_was_asked_for(kind: str, value: Any, good: list[str], bad: list[str]) -> None:
    grammar = made(kind, value)
    assert {text: takes(grammar, text) for text in (*good, *bad)} == {
        **dict.fromkeys(good, True),
        **dict.fromkeys(bad, False),
    }


def test_whitespace_within_json_is_that_of_the_pattern() -> None:
    grammar = made("json", ONE, whitespace_pattern="[ ]?")
    assert takes(grammar, '{"x": 1}')
    assert takes(grammar, '{"x":1}')
    assert not takes(grammar, '{"x":\n1}')


THOUGHTS = 'a < b,\n{"x":'


@pytest.mark.parametrize(
    ("begin", "end"), [("<think>", "</think>"), ("[R]", "[/R]")], ids=["special", "text"]
)
@pytest.mark.parametrize(
    ("kind", "value", "answer"),
    [("json", ONE, '{"x":1}'), ("regex", "[0-9]+", "12"), ("grammar", 'start: "q"', "q")],
)
def test_reasoning_before_the_answer_is_free(
    begin: str, end: str, kind: str, value: Any, answer: str
) -> None:
    grammar = made(kind, value, (begin, end, False))
    assert takes(grammar, answer)
    assert takes(grammar, f"{begin}{THOUGHTS}{end}\n\n{answer}")
    assert not takes(grammar, f"{begin}{THOUGHTS}{end}")
    assert not takes(grammar, f"{begin}{THOUGHTS}{answer}")
    assert not takes(grammar, f"{begin}{THOUGHTS}{end}-{answer}")


@pytest.mark.parametrize(
    ("begin", "end"), [("<think>", "</think>"), ("[R]", "[/R]")], ids=["special", "text"]
)
def test_reasoning_that_the_prompt_began_has_to_end(begin: str, end: str) -> None:
    grammar = made("json", ONE, (begin, end, True))
    assert takes(grammar, THOUGHTS + end + '{"x":1}')
    assert not takes(grammar, '{"x":1}')


# Kind, value, words of the refusal, place.
REFUSED: list[tuple[str, Any, str, str]] = [
    ("json", False, "not satisfiable", ""),
    ("json", "x", "not JSON", ""),
    ("json", "3", "must be an object, got int", ""),
    (
        "json",
        {"properties": {"x": {"uniqueItems": True}}},
        r'Unimplemented keys: \["uniqueItems"\]',
        "properties.x",
    ),
    ("json", {"x-guidance": {"lenient": True}, "contains": {}}, r'Unimplemented keys: \["contains"\]', ""),
    (
        "json",
        {"properties": {"x": {"format": "regex", "type": "string"}}},
        "Unknown format: regex",
        "properties.x",
    ),
    ("json", {"anyOf": [{}, {"type": "strin"}]}, "Invalid type: strin", "anyOf[1]"),
    ("json", {"items": {"type": "string", "pattern": "(?=a)"}, "type": "array"}, "look-around", "items"),
    ("json", {"properties": {"x": {"$ref": "#/$defs/a"}}}, "does not exist", "properties.x"),
    ("json", {"$ref": "http://example.com/x"}, "does not fetch", ""),
    ("json", {"type": "integer", "minimum": 2, "maximum": 1}, "Unsatisfiable", ""),
    ("json", {"items": {"oneOf": [{"pattern": "ab"}, {"pattern": "bc"}]}}, "oneOf", "items"),
    ("regex", "(?=a)b", "look-ahead", ""),
    ("regex", "(", "unclosed group", ""),
    ("regex", "[^\\x00-\\x{10FFFF}]", "no text fits it", ""),
    ("grammar", "start: (", "Expected token", ""),
    ("grammar", 'start: a\na: a "x"', "no text fits it", ""),
    ("grammar", "start: <nope>", "unknown special token", ""),
    ("grammar", "root ::= (", "cannot be read as GBNF", ""),
    ("grammar", 'start: "a" @other', "unknown grammar", ""),
    ("structural_tag", "{", "not JSON", ""),
    ("structural_tag", {**TAGS, "triggers": ["<x"]}, "begin with one of the triggers", "structures[0]"),
    ("structural_tag", {"type": "structural_tag"}, "list of 1 to 128", "structures"),
    (
        "structural_tag",
        {**TAGS, "structures": [{"begin": "<fn=", "schema": {"contains": {}}, "end": ""}]},
        "Unimplemented keys",
        "structures[0].schema",
    ),
    (
        "structural_tag",
        tag({"type": "qwen_xml_parameter"}),
        "'qwen_xml_parameter' is not supported",
        "format",
    ),
    (
        "structural_tag",
        tag({"type": "sequence", "elements": [{"type": "any_text"}, {"type": "any_text"}]}),
        "may only come last",
        "format.elements[0]",
    ),
]


@pytest.mark.parametrize(("kind", "value", "words", "path"), REFUSED, ids=lambda value: str(value)[:30])
def test_what_is_wrong_or_not_served_is_refused_with_its_place(
    kind: str, value: Any, words: str, path: str
) -> None:
    with pytest.raises(RefusalError, match=words) as caught:
        made(kind, value)
    assert caught.value.path == path


def test_a_grammar_of_the_requests_own_is_checked_and_left_as_it_is() -> None:
    assert made("", 'start: "a"') == 'start: "a"'
    with pytest.raises(RefusalError, match="Expected token"):
        made("", "start: (")


def test_a_grammar_that_is_slow_to_begin_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made("regex", "a+")
    monkeypatch.setattr(grammar_child, "MAX_MASK_S", -1.0)
    with pytest.raises(RefusalError, match="its first token may be takes more than"):
        made("regex", "a+")
