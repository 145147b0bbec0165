"""Schemas over a limit, and schemas that llguidance would serve wrong without a word."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from splitserve.frontend.text.grammar import json_schema
from splitserve.frontend.text.grammar.json_schema import read_schema
from splitserve.frontend.text.grammar.refusal import RefusalError
from tests.frontend.text.grammar.matching import made, takes

DOCS = Path(__file__).parents[4] / "docs" / "structured-outputs.md"


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"not": schema}
    return schema


def properties(count: int) -> dict[str, Any]:
    return {"properties": {f"p{i}": True for i in range(count)}}


LIMITS = [
    ("MAX_SCHEMA_DEPTH", nested, "nested at most"),
    ("MAX_PROPERTIES", properties, "properties, got"),
    ("MAX_ENUM_VALUES", lambda count: {"items": {"enum": list(range(count))}}, "enum values, got"),
    (
        "MAX_SCHEMA_BYTES",
        lambda size: {"$comment": "x" * (size - len('{"$comment": ""}'))},
        "characters, got",
    ),
]


@pytest.mark.parametrize(("name", "make", "words"), LIMITS, ids=[name for name, _, _ in LIMITS])
def test_a_schema_at_the_limit_is_read_and_one_beyond_refused(name: str, make: Any, words: str) -> None:
    limit = getattr(json_schema, name)
    assert read_schema(make(limit)) == make(limit)
    with pytest.raises(RefusalError, match=words) as caught:
        read_schema(make(limit + 1))
    assert str(limit) in str(caught.value)


def test_the_deepest_schema_is_served() -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range((json_schema.MAX_SCHEMA_DEPTH - 1) // 2):
        schema = {"type": "object", "properties": {"a": schema}}
    assert made("json", schema)


ITSELF: dict[str, Any] = {"$ref": "#"}
NEVER = [
    ITSELF,
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {"type": "object", "properties": {"a": ITSELF}, "required": ["a"]},
    {"type": "object", "additionalProperties": ITSELF, "required": ["a"]},
    {"type": "array", "items": ITSELF, "minItems": 1},
    {"type": "array", "prefixItems": [ITSELF], "minItems": 1},
    {"allOf": [{"type": "object"}, ITSELF]},
    {"anyOf": [ITSELF, {"$ref": "#/$defs/a"}], "$defs": {"a": ITSELF}},
    {"$ref": "#/elsewhere/a", "elsewhere": {"a": {"$ref": "#/elsewhere/a"}}},
]
ONCE = [
    {"type": "object", "properties": {"a": ITSELF}},
    {"type": "object", "properties": {"a": {"anyOf": [ITSELF, {"type": "null"}]}}, "required": ["a"]},
    {"type": "array", "items": ITSELF},
    {"type": "array", "items": ITSELF, "minItems": 0},
    {"type": "array", "prefixItems": [{}], "items": ITSELF, "minItems": 1},
    {"$ref": "#/elsewhere/a", "elsewhere": {"a": {"type": "null"}}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}},
]


@pytest.mark.parametrize("schema", NEVER, ids=str)
def test_a_schema_without_finite_values_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(RefusalError, match="requires itself"):
        read_schema(schema)


@pytest.mark.parametrize("schema", ONCE, ids=str)
def test_a_schema_that_refers_to_itself_but_has_an_end_is_served(schema: dict[str, Any]) -> None:
    assert made("json", schema)


@pytest.mark.parametrize("name", ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"])
def test_bounds_that_would_be_rounded_are_refused(name: str) -> None:
    read_schema({"items": {name: 2**53}})
    for bound in (2**53 + 1, 10**400):
        with pytest.raises(RefusalError, match=name) as caught:
            read_schema({"allOf": [{name: bound}]})
        assert caught.value.path == "allOf[0]"


NEAR: list[dict[str, Any]] = [
    {"exclusiveMinimum": 0, "maximum": 0.5},
    {"exclusiveMinimum": 1, "exclusiveMaximum": 1.5},
    {"exclusiveMaximum": 0, "minimum": -0.1},
    {"exclusiveMinimum": True, "minimum": 0, "maximum": 0.5},
    {"exclusiveMinimum": 0, "allOf": [{"maximum": 0.5}]},
]
FAR: list[dict[str, Any]] = [
    {"exclusiveMinimum": 0, "maximum": 1},
    {"exclusiveMinimum": 0.5, "maximum": 0.9},
    {"exclusiveMinimum": 0, "maximum": 1.5},
    {"minimum": 0, "maximum": 0.5},
    {"exclusiveMinimum": 0},
]


def test_bounds_that_are_no_finite_numbers_are_left_to_llguidance() -> None:
    for bound in ("1e400", "NaN", "-1e400"):
        with pytest.raises(RefusalError):
            made("json", f'{{"type": "number", "exclusiveMinimum": {bound}, "maximum": 0.5}}')


@pytest.mark.parametrize("bounds", NEAR, ids=str)
def test_exclusive_bounds_that_would_be_included_are_refused(bounds: dict[str, Any]) -> None:
    with pytest.raises(RefusalError, match="another bound less than 1 away") as caught:
        read_schema({"items": {"type": "number"} | bounds})
    assert caught.value.path == "items"
    read_schema({"type": "integer"} | bounds)


@pytest.mark.parametrize("bounds", FAR, ids=str)
def test_exclusive_bounds_that_are_served_are_excluded(bounds: dict[str, Any]) -> None:
    grammar = made("json", {"type": "number"} | bounds)
    validator = Draft202012Validator({"type": "number"} | bounds)
    for text in ("0", "0.0", "-0", "0.5", "0.6", "1", "1.0", "1.5", "2"):
        assert validator.is_valid(json.loads(text)) >= takes(grammar, text)


# A schema for each keyword of the documentation's table.
KEYWORDS: dict[str, dict[str, Any]] = {
    "type": {"type": ["string", "null"]},
    "enum": {"enum": [1, "a"]},
    "const": {"const": {"a": 1}},
    "anyOf": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "allOf": {"allOf": [{"type": "string"}, {"minLength": 1}]},
    "oneOf": {"oneOf": [{"type": "string"}, {"type": "null"}]},
    "$ref": {"$ref": "#/$defs/a", "$defs": {"a": {}}},
    "$defs": {"$ref": "#/$defs/a", "$defs": {"a": {}}},
    "definitions": {"$ref": "#/definitions/a", "definitions": {"a": {}}},
    "$anchor": {"$ref": "#a", "$defs": {"x": {"$anchor": "a"}}},
    "properties": {"type": "object", "properties": {"a": {}}},
    "required": {"type": "object", "required": ["a"]},
    "additionalProperties": {"type": "object", "additionalProperties": False},
    "patternProperties": {"type": "object", "patternProperties": {"^a": {}}},
    "minProperties": {"type": "object", "minProperties": 1},
    "maxProperties": {"type": "object", "maxProperties": 1},
    "items": {"type": "array", "items": {}},
    "prefixItems": {"type": "array", "prefixItems": [{}]},
    "additionalItems": {"type": "array", "items": [{}], "additionalItems": False},
    "minItems": {"type": "array", "minItems": 1},
    "maxItems": {"type": "array", "maxItems": 1},
    "minLength": {"type": "string", "minLength": 1},
    "maxLength": {"type": "string", "maxLength": 1},
    "pattern": {"type": "string", "pattern": "a"},
    "format": {"type": "string", "format": "date"},
    "minimum": {"type": "integer", "minimum": 1},
    "maximum": {"type": "integer", "maximum": 1},
    "exclusiveMinimum": {"type": "integer", "exclusiveMinimum": 1},
    "exclusiveMaximum": {"type": "integer", "exclusiveMaximum": 1},
    "multipleOf": {"type": "integer", "multipleOf": 7},
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "contains": {"type": "array", "contains": {}},
    "minContains": {"type": "array", "minContains": 1},
    "maxContains": {"type": "array", "maxContains": 1},
    "propertyNames": {"type": "object", "propertyNames": {"maxLength": 1}},
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}},
    "dependencies": {"type": "object", "dependencies": {"a": ["b"]}},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": False},
    "unevaluatedItems": {"type": "array", "unevaluatedItems": False},
    "not": {"not": {"type": "null"}},
    "if": {"if": {"type": "null"}, "else": {"type": "string"}},
    "then": {"if": {"minLength": 1}, "then": {"type": "string"}},
    "else": {"if": {"type": "null"}, "else": {"type": "string"}},
    "$dynamicRef": {"$dynamicRef": "#a"},
}
TABLE = re.findall(r"^\| (served|refused) \| (.*?) \|", DOCS.read_text(), re.MULTILINE)
DOCUMENTED = [(name, verdict) for verdict, names in TABLE for name in re.findall(r"`([^`]+)`", names)]


@pytest.mark.parametrize(("name", "verdict"), DOCUMENTED)
def test_the_documentation_says_of_each_keyword_what_llguidance_does(name: str, verdict: str) -> None:
    if verdict == "served":
        assert made("json", KEYWORDS[name])
    else:
        with pytest.raises(RefusalError, match="Unimplemented"):
            made("json", KEYWORDS[name])


def test_every_keyword_is_documented_once() -> None:
    assert sorted(name for name, _ in DOCUMENTED) == sorted(KEYWORDS)
