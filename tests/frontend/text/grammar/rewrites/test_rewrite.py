"""What is served in other words allows nothing that jsonschema does not, and what it leaves out is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from jsonschema import Draft4Validator, Draft202012Validator
from jsonschema.validators import validator_for

from splitserve.frontend.text.grammar.refusal import RefusalError
from splitserve.frontend.text.grammar.rewrites.rewrite import rewrite
from tests.frontend.text.grammar.matching import made, takes

Json = Any
OBJECT = {"type": "object"}
DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}


class Case(NamedTuple):
    """A schema, instances that are written and that are not; `lost` are valid but not written."""

    schema: dict[str, Json]
    good: list[Json]
    bad: list[Json]
    lost: Sequence[Json] = ()


def of(*names: str) -> dict[str, Json]:
    return {**OBJECT, "properties": {name: {"type": "integer"} for name in names}}


SHAPES = {
    "oneOf": [
        {**OBJECT, "properties": {"kind": {"enum": ["dot"]}}},
        {**OBJECT, "properties": {"kind": {"enum": ["box"]}, "side": {"type": "integer"}}},
    ]
}
ONE_OF = {
    "of types": Case({"oneOf": [{"type": "string"}, {"type": "null"}]}, ["a", None], [1]),
    "behind references": Case(
        {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": {"type": "string"}}},
        ["a", None],
        [1],
    ),
    "by a required property": Case(
        {**of("a", "b"), "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}],
        [{}, {"a": 1, "b": 1}],
    ),
    "by several required properties": Case(
        {**of("a", "b", "c"), "oneOf": [{"required": ["a"]}, {"required": ["b", "c"]}]},
        [{"a": 1}, {"a": 1, "b": 1}, {"a": 1, "c": 1}, {"b": 1, "c": 1}],
        [{}, {"b": 1}, {"a": 1, "b": 1, "c": 1}],
    ),
    "by a value that is required outside": Case(
        {**SHAPES, "required": ["kind"]}, [{"kind": "dot"}, {"kind": "box", "side": 1}], [{}, {"kind": "x"}]
    ),
    "by a value that allOf requires": Case(
        {"allOf": [{"required": ["kind"]}, SHAPES]}, [{"kind": "dot"}, {"kind": "box"}], [{}]
    ),
    "by an optional value": Case(
        SHAPES,
        [{"kind": "dot"}, {"kind": "box", "side": 1}, {"kind": "dot", "side": "a"}],
        [{}, {"kind": "x"}, {"side": 1}],
    ),
    "of numbers that meet": Case(
        {"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 3}]},
        [2, 6],
        [3, 4, 5, 4.5],
    ),
    "of numbers that do not meet": Case(
        {"oneOf": [{"type": "number", "maximum": 1}, {"type": "number", "exclusiveMinimum": 1}]},
        [0, 1, 1.5, 2],
        ["a"],
    ),
    "of listed values": Case(
        {"type": "string", "oneOf": [{"enum": ["a", "b"]}, {"enum": ["b", "cd"]}]}, ["a", "cd"], ["b", "c"]
    ),
    "of a text and of some": Case(
        {"oneOf": [{"type": "string"}, {"enum": ["ab", "b", '"']}]},
        ["a", "", "abc", "\\"],
        ["ab", "b", '"', 1],
    ),
    "of patterns that exclude each other": Case(
        {"type": "string", "oneOf": [{"pattern": "^a+$"}, {"pattern": r"^\d+$"}]}, ["aa", "12"], ["", "a1"]
    ),
    "where one option is another one": Case({"oneOf": [{"type": "null"}, {}]}, [1, "a", {}], [None]),
    "of arrays, by the first item": Case(
        {
            "type": "array",
            "oneOf": [{"items": {"type": "string"}}, {"items": {"type": "integer"}}],
        },
        [["a"], ["a", "b"], [1, 2]],
        [[], ["a", 1], [None]],
    ),
    "of closed objects": Case(
        {"oneOf": [{**of("a"), "additionalProperties": False}, {**of("b"), "required": ["b"]}]},
        [{}, {"a": 1}, {"b": 1}, {"b": 1, "a": "x"}],
        [{"b": "a"}, {"c": 1}],
    ),
    "at a place that is referred to": Case(
        {"oneOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/oneOf/0"}}]},
        ["a", ["a"]],
        [[["a"]], 1],
    ),
}
CONDITIONS = {
    "not": Case({"not": {"type": ["string", "object"]}}, [1, None, []], ["a", {}]),
    "not some values": Case({"type": "string", "not": {"enum": ["a", "ab"]}}, ["", "b", "abc"], ["a", "ab"]),
    "not a number": Case({"type": "integer", "not": {"const": 2}}, [1, 3], [2]),
    "not within bounds": Case({"type": "number", "not": {"minimum": 1, "maximum": 3}}, [0.5, 4], [1, 2, 3]),
    "not beyond an excluded bound": Case(
        {**DRAFT_4, "type": "number", "not": {"minimum": 1, "exclusiveMinimum": True}}, [1, 0], [2]
    ),
    "not near a fraction": Case(
        {"minimum": 1.5, "type": "number", "not": {"minimum": 4}}, [2, 3], [4, 1], [3.5]
    ),
    "not required": Case(
        {**of("a", "b"), "not": {"required": ["a", "b"]}}, [{}, {"a": 1}, {"b": 1}], [{"a": 1, "b": 1}]
    ),
    "not one of": Case(
        {**of("a", "b"), "not": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}},
        [{}],
        [{"a": 1}, {"b": 1}],
    ),
    "not not": Case({"not": {"not": {"type": "string"}}}, ["a"], [1]),
    "not of a reference": Case({"not": {"$ref": "#/$defs/a"}, "$defs": {"a": {"type": "null"}}}, [1], [None]),
    "not a set of characters": Case(
        {"type": "string", "not": {"pattern": r"^[\s.]+$"}}, ["", "a", " a."], [" ", " .", "\u00a0"]
    ),
    "not a set somewhere": Case({"type": "string", "not": {"pattern": "[^a-c]"}}, ["", "abc"], ["abd", '"']),
    "not a length": Case({"type": "string", "not": {"minLength": 2}}, ["", "a"], ["ab"]),
    "not what draft 4 does not know": Case({**DRAFT_4, "not": {"const": 1, "type": "string"}}, [2, 1], ["a"]),
    "if then": Case(
        {**of("a", "b"), "if": {"required": ["a"]}, "then": {"required": ["b"]}},
        [{}, {"b": 1}, {"a": 1, "b": 1}],
        [{"a": 1}],
    ),
    "if then else": Case(
        {
            **OBJECT,
            "properties": {"kind": {"enum": ["a", "b"]}, "x": {}},
            "if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]},
            "then": {"required": ["x"]},
            "else": {"properties": {"x": {"type": "null"}}},
        },
        [{"kind": "a", "x": 1}, {"kind": "b"}, {"kind": "b", "x": None}, {}],
        [{"kind": "a"}, {"kind": "b", "x": 1}],
    ),
    "if in vain": Case({"if": {"contains": {}}, "then": True}, [1, []], []),
    "then in vain": Case({"then": False, "else": False}, [1, []], []),
    "dependentRequired": Case(
        {**of("a", "b"), "dependentRequired": {"a": ["b"]}}, [{}, {"b": 1}, {"a": 1, "b": 1}], [{"a": 1}]
    ),
    "dependencies on each other": Case(
        {**of("a", "b", "c"), **DRAFT_7, "dependencies": {"a": ["b"], "b": ["a"], "c": ["a"]}},
        [{}, {"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1}],
        [{"a": 1}, {"b": 1}, {"c": 1}, {"a": 1, "c": 1}],
    ),
    "dependencies of all types": Case(
        {**DRAFT_7, "dependencies": {"a": ["b"]}}, [1, {}, {"b": 1, "a": 1}], [{"a": 1}]
    ),
    "dependentSchemas": Case(
        {**of("a", "b"), "dependentSchemas": {"a": {"properties": {"b": {"minimum": 5}}}}},
        [{}, {"b": 1}, {"a": 1}, {"a": 1, "b": 5}],
        [{"a": 1, "b": 1}],
    ),
}
COUNTS = {
    "minProperties": Case({**of("a", "b"), "minProperties": 1}, [{"a": 1}, {"b": 1}, {"c": "x"}], [{}]),
    "minProperties of two": Case(
        {**of("a", "b"), "minProperties": 2},
        [{"a": 1, "b": 1}, {"a": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}],
        [{}, {"a": 1}, {"c": 1}],
        [{"c": 1, "d": 1}],
    ),
    "maxProperties": Case(
        {**of("a", "b", "c"), "maxProperties": 2, "required": ["a"]},
        [{"a": 1}, {"a": 1, "b": 1}, {"a": 1, "d": 1}],
        [{"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "d": 1}],
    ),
    "both": Case(
        {**of("a", "b", "c"), "minProperties": 2, "maxProperties": 2, "additionalProperties": False},
        [{"a": 1, "b": 1}, {"b": 1, "c": 1}],
        [{"a": 1}, {"a": 1, "b": 1, "c": 1}],
    ),
    "of any type": Case({"properties": {"a": {}}, "minProperties": 1}, [1, [], {"a": 1}], [{}]),
    "propertyNames of a pattern": Case(
        {**OBJECT, "properties": {"aa": {}, "b": {}}, "propertyNames": {"pattern": "^a"}},
        [{}, {"aa": 1}, {"ab": 1}],
        [{"b": 1}, {"c": 1}],
    ),
    "propertyNames in a list": Case(
        {**OBJECT, "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "null"}},
        [{}, {"b": None}, {"a": None, "b": None}],
        [{"a": 1}, {"c": None}],
    ),
    "propertyNames of a length": Case(
        {**OBJECT, "propertyNames": {"minLength": 1, "maxLength": 2}}, [{}, {"ab": 1}], [{"": 1}, {"abc": 1}]
    ),
}
TEXTS = {
    "an unknown format": Case({"type": "string", "format": "topic"}, ["a", ""], [1]),
    "a set without quotes": Case(
        {"type": "string", "pattern": r'^[^"]*$'}, ["a\\", "\n"], ['"', 'a"'], ["\x00"]
    ),
    "a set without backslashes": Case({"type": "string", "pattern": r"^[^\\]*$"}, ['"', "a"], ["\\"]),
    "a set of names": Case(
        {**OBJECT, "patternProperties": {'^[^"]+$': {}}, "additionalProperties": False},
        [{"a": 1}],
        [{'"': 1}],
    ),
    "uri-reference": Case(
        {"type": "string", "format": "uri-reference"}, ["/a?b#c", "a/b:c", "//h:1/x", ""], []
    ),
    "json-pointer": Case({"type": "string", "format": "json-pointer"}, ["", "/a/~0~1"], []),
}
CASES = {**ONE_OF, **CONDITIONS, **COUNTS, **TEXTS}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_written_is_what_jsonschema_allows_but_for_what_is_lost(case: Case) -> None:
    grammar, validator = (
        made("json", case.schema),
        validator_for(case.schema, Draft202012Validator)(case.schema),
    )
    for instance in (*case.good, *case.bad, *case.lost):
        text = json.dumps(instance, separators=(",", ":"), ensure_ascii=False)
        judged = (takes(grammar, text), validator.is_valid(instance))
        assert judged == (instance in case.good, instance not in case.bad), text


# Of these llguidance would be given too much, or what jsonschema reads otherwise.
FORMS: list[tuple[str, str, bool]] = [
    ("uri-reference", "a b", False),
    ("uri-reference", "a:b/c", True),
    ("uri-reference", "%zz", False),
    ("iri", "http://a/b", True),
    ("iri", "a", False),
    ("idn-email", "a@b.c", True),
    ("idn-hostname", "a-b.c", True),
    ("idn-hostname", "xn--a", False),
    ("json-pointer", "a", False),
    ("json-pointer", "/~2", False),
    ("relative-json-pointer", "1/a", True),
    ("relative-json-pointer", "0#", True),
    ("relative-json-pointer", "01", False),
]


@pytest.mark.parametrize(("name", "text", "is_valid"), FORMS)
def test_formats_that_jsonschema_knows_are_held_to(name: str, text: str, is_valid: bool) -> None:
    grammar = made("json", {"type": "string", "format": name, "pattern": "^"})
    assert takes(grammar, json.dumps(text)) == is_valid


REFUSED: list[tuple[dict[str, Json], str, str]] = [
    (
        {"properties": {"x": {"type": "string", "oneOf": [{"pattern": "ab"}, {"pattern": "bc"}]}}},
        "oneOf: options 0 and 1 may both be valid",
        "properties.x",
    ),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "options 0 and 1", ""),
    ({"oneOf": [{"format": "uri"}, {"format": "email"}], "type": "string"}, "options 0 and 1", ""),
    ({"items": {"not": {"type": "array", "items": {"contains": {}}}}}, "not: it cannot be said", "items"),
    ({"type": "number", "not": {"multipleOf": 2}}, "values of type number", ""),
    ({"if": {"type": "integer"}, "then": {"minimum": 1}}, "if: it cannot be said", ""),
    ({"anyOf": [{}, {"not": {}, "oneOf": []}], "not": {}}, "parts exclude each other", ""),
    ({"oneOf": [{"type": "null"}, {"type": "null"}]}, "Unsatisfiable", ""),
    ({"type": "object", "minProperties": 2}, "names which are not listed", ""),
    ({**of(*"abcdefghij"), "minProperties": 5}, "more than 64 choices", ""),
    ({"propertyNames": {"not": {"const": "a"}}}, "propertyNames: only", ""),
    ({"propertyNames": {"pattern": "a"}, "patternProperties": {"b": {}}}, "beside patternProperties", ""),
    ({"type": "string", "format": "regex"}, "Unknown format: regex", ""),
]


@pytest.mark.parametrize(("schema", "words", "path"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_said_is_refused_with_its_place(
    schema: dict[str, Json], words: str, path: str
) -> None:
    with pytest.raises(RefusalError, match=words) as caught:
        made("json", schema)
    assert caught.value.path == path


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"not": {"const": {"oneOf": []}}}},
        {"enum": [{"not": {}}], "default": {"if": 1}},
        {"type": "string", "format": "date", "pattern": "[a]"},
    ],
    ids=str,
)
def test_a_schema_that_needs_no_other_words_stays_itself(schema: dict[str, Json]) -> None:
    assert rewrite(schema) is schema


def test_definitions_that_nobody_needs_refuse_nothing() -> None:
    unserved = {"type": "string", "oneOf": [{"pattern": "ab"}, {"pattern": "bc"}]}
    schema = {"not": {"type": "null"}, "$defs": {"a": {"properties": {"b": unserved}}}}
    assert takes(made("json", schema), "1")
    with pytest.raises(RefusalError, match="options 0 and 1"):
        made("json", {**schema, "items": {"$ref": "#/$defs/a/properties/b"}})


def test_references_to_what_is_rewritten_for_its_place_lead_to_the_schema_itself() -> None:
    # Within allOf the kind is required, where it is referred to it is not.
    schema = {
        **OBJECT,
        "allOf": [{"required": ["kind"]}, SHAPES],
        "properties": {"other": {"$ref": "#/allOf/1"}},
    }
    grammar = made("json", schema)
    assert takes(grammar, '{"kind":"dot","other":{"kind":"dot"}}')
    assert not Draft202012Validator(schema).is_valid({"kind": "dot", "other": {}})
    assert not takes(grammar, '{"kind":"dot","other":{}}')


def test_properties_keep_the_order_of_the_schema() -> None:
    schema = {**of("a", "b", "c"), "required": ["c"], "dependentRequired": {"c": ["b"], "b": ["a"]}}
    assert takes(made("json", schema), '{"a":1,"b":1,"c":1}')


def deep(level: int, keyword: str) -> dict[str, Json]:
    schema: dict[str, Json] = {"required": ["a"]}
    for i in range(level):
        other = {"properties": {f"p{i}": {"type": "integer"}}, "required": [f"r{i}"]}
        schema = {keyword: [schema, other]} if keyword == "oneOf" else {keyword: {"anyOf": [schema, other]}}
    return schema


@pytest.mark.parametrize("keyword", ["oneOf", "not"])
def test_nested_cases_do_not_multiply_without_end(keyword: str) -> None:
    with pytest.raises(RefusalError):
        made("json", deep(40, keyword))


def test_many_options_do_not_multiply_without_end() -> None:
    options = [{"required": [f"{letter}{i}" for letter in "abcd"]} for i in range(60)]
    with pytest.raises(RefusalError, match="too many cases"):
        made("json", {**OBJECT, "oneOf": options})


@pytest.mark.parametrize(
    "option",
    [
        lambda i: {"const": f"v{i}", "title": "x"},
        lambda i: {**OBJECT, "properties": {"kind": {"const": f"v{i}"}}, "required": ["kind"]},
    ],
    ids=["values", "objects"],
)
def test_many_options_that_differ_in_a_value_are_served(option: Callable[[int], dict[str, Json]]) -> None:
    instance = json.dumps("v7" if "const" in option(0) else {"kind": "v7"}, separators=(",", ":"))
    assert takes(made("json", {"oneOf": [option(i) for i in range(200)]}), instance)


def test_draft_4_has_no_const() -> None:
    schema = {**DRAFT_4, "type": "string", "oneOf": [{"const": "a"}, {"const": "b"}]}
    assert not Draft4Validator(schema).is_valid("a")
    with pytest.raises(RefusalError):
        made("json", schema)
