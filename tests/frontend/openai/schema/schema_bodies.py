"""Bodies that the OpenAPI document allows: a strategy over the part of JSON schema that the document uses."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from jsonschema import Draft202012Validator

Json = Any
# Enough to meet every pair of fields in the end, few enough that rules between fields seldom fail.
MAX_OPTIONAL = 4
MAX_ITEMS = 3
_STRINGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


class Bodies:
    """Makes values of the document's schemas."""

    def __init__(self, schemas: dict[str, Json]) -> None:
        self._schemas = schemas

    def of(self, name: str) -> st.SearchStrategy[Json]:
        """Values of a schema that keep its rules between fields too."""
        made = self._values(self._schemas[name])
        if "allOf" not in self._schemas[name]:
            return made
        # Filtered where the rules are: of a conversation one message is drawn again, not all of them.
        rules = Draft202012Validator({"allOf": self._schemas[name]["allOf"]})
        return made.filter(rules.is_valid)

    def _values(self, schema: Json) -> st.SearchStrategy[Json]:
        if "$ref" in schema:
            return st.deferred(lambda: self.of(schema["$ref"].rpartition("/")[2]))
        if "anyOf" in schema:
            return st.one_of([self._values(option | _bounds(schema)) for option in schema["anyOf"]])
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        return getattr(self, "_" + schema["type"])(schema)

    def _null(self, schema: Json) -> st.SearchStrategy[Json]:
        return st.none()

    def _boolean(self, schema: Json) -> st.SearchStrategy[Json]:
        return st.booleans()

    def _integer(self, schema: Json) -> st.SearchStrategy[Json]:
        return st.integers(schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1))

    def _number(self, schema: Json) -> st.SearchStrategy[Json]:
        low, high = float(schema.get("minimum", -1e300)), float(schema.get("maximum", 1e300))
        return st.floats(low, high, allow_nan=False, exclude_min="exclusiveMinimum" in schema)

    def _string(self, schema: Json) -> st.SearchStrategy[Json]:
        if "pattern" in schema:
            return st.from_regex(schema["pattern"], fullmatch=True)
        low = schema.get("minLength", 0)
        high = schema.get("maxLength", 6)
        return st.one_of(_STRINGS.filter(lambda text: low <= len(text) <= high), st.just("x" * high))

    def _array(self, schema: Json) -> st.SearchStrategy[Json]:
        low = schema.get("minItems", 0)
        return st.lists(self._values(schema["items"]), min_size=low, max_size=low + MAX_ITEMS)

    def _object(self, schema: Json) -> st.SearchStrategy[Json]:
        if "properties" not in schema:
            keys = self._string(schema.get("propertyNames", {}))
            values = self._values(schema.get("additionalProperties", {"type": "integer"}))
            return st.dictionaries(keys, values, max_size=MAX_ITEMS)
        properties, required = schema["properties"], schema.get("required", [])
        optional = st.sets(st.sampled_from(sorted(properties)), max_size=MAX_OPTIONAL)
        return optional.flatmap(
            lambda names: st.fixed_dictionaries(
                {name: self._values(properties[name]) for name in {*required, *names}}
            )
        )


def _bounds(schema: Json) -> dict[str, Json]:
    """What stands beside anyOf holds for each option."""
    return {key: value for key, value in schema.items() if key in _BOUNDS}


_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "pattern", "minLength", "maxLength", "minItems")
