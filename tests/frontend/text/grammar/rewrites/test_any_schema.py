"""Of schemas put together at random, nothing is written that jsonschema does not allow."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from splitserve.frontend.text.grammar.refusal import RefusalError
from tests.frontend.text.grammar.matching import made, takes

Json = Any

NAMES = ("a", "b", "c")
# So few that what a schema says is often true of one.
VALUES: list[Json] = [
    *(None, True, False, 0, 1, 2, 1.5, "", "a", "b", "ab", 'a"', "a\n", [], [1], ["a"], [1, "a"], [[]]),
    *({}, {"a": 1}, {"b": "a"}, {"a": "a", "b": 1}, {"a": 1, "b": 2, "c": 3}, {"c": None}, {"d": 1}),
    *({"a": {"a": 1}}, {"a": [1]}, {"a": 2, "d": 1}, {"d": 1, "e": 2}),
]
DRAFTS = ("http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema")

values = st.sampled_from(VALUES)
names = st.sampled_from(NAMES)
name_lists = st.lists(names, unique=True, max_size=2)
types = st.sampled_from(["integer", "number", "string", "array", "object", ["string", "object"], ["null"]])


def keywords(schemas: st.SearchStrategy[Json], *, refers: bool = True) -> st.SearchStrategy[Json]:
    """A few keywords at a time: with many of them hardly anything is valid."""
    lists = st.lists(schemas, min_size=1, max_size=3)
    known: dict[str, st.SearchStrategy[Json]] = {
        "type": types,
        "enum": st.lists(values, min_size=1, max_size=3),
        "const": values,
        "properties": st.dictionaries(names, schemas, max_size=3),
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "[^ab]"]), schemas, max_size=1),
        "additionalProperties": schemas,
        "required": name_lists,
        "minProperties": st.integers(0, 2),
        "maxProperties": st.integers(0, 2),
        "propertyNames": st.sampled_from([{"pattern": "^[ab]$"}, {"enum": ["a", "d"]}, {"maxLength": 0}]),
        "dependentRequired": st.dictionaries(names, name_lists, max_size=3),
        "dependentSchemas": st.dictionaries(names, schemas, max_size=1),
        "dependencies": st.dictionaries(names, name_lists | schemas, max_size=2),
        "items": schemas,
        "minItems": st.integers(0, 2),
        "maxItems": st.integers(0, 2),
        "minimum": st.integers(0, 2),
        "exclusiveMaximum": st.integers(0, 2),
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(0, 2),
        "pattern": st.sampled_from(["a", "^a*$", '[^"]', "^[^a]", "b$", "^ab$", r"\s$"]),
        "allOf": lists,
        "anyOf": lists,
        "oneOf": lists,
        "not": schemas,
        "if": schemas,
        "then": schemas,
        "else": schemas,
        # Not within the definition: what refers to itself at once has no meaning.
        **({"$ref": st.just("#/$defs/x")} if refers else {}),
    }
    chosen = st.lists(st.sampled_from(sorted(known)), unique=True, min_size=1, max_size=4)
    return chosen.flatmap(lambda keys: st.fixed_dictionaries({key: known[key] for key in keys}))


simple = st.booleans() | st.fixed_dictionaries({"type": types})
schemas = st.recursive(simple, keywords, max_leaves=8)
definitions = st.recursive(simple, lambda inner: keywords(inner, refers=False), max_leaves=8)


@given(keywords(schemas), definitions, st.sampled_from(DRAFTS))
def test_what_is_written_is_valid(schema: dict[str, Json], definition: Json, draft: str) -> None:
    whole = {"$schema": draft, **schema, "$defs": {"x": definition}}
    try:
        grammar = made("json", whole)
    except RefusalError:
        assume(False)
    validator = validator_for(whole, Draft202012Validator)(whole)
    for value in VALUES:
        text = json.dumps(value, separators=(",", ":"))
        assert not takes(grammar, text) or validator.is_valid(value), text
