"""What a schema does not allow, as a schema: all of it, or a part of it that can be said.

A complement is made type by type, each of what the schema says giving one option: a required property is
missing, a property has a wrong value, a text is too short. Some of that cannot be said to llguidance (a text
that does not match a pattern). Leaving an option out is safe, as what is left is still not allowed by the
schema, but a type of which nothing is left would never be written where the user may expect it: such a type
is lost, and who asked has to refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from splitserve.frontend.text.grammar.rewrites.document import Document, names_of_patterns, required_of
from splitserve.frontend.text.grammar.rewrites.impossible import facts_of, first_item, is_impossible
from splitserve.frontend.text.grammar.rewrites.scalars import other_numbers, other_texts, without_bounds
from splitserve.frontend.text.grammar.rewrites.terms import (
    TYPES,
    Schema,
    all_of,
    any_of,
    atoms_of_type,
    identity,
    listing,
    mapping,
    type_of,
    types_of_atoms,
)

Json = Any

# Options of one type: llguidance multiplies those of schemas that hold together.
MAX_OPTIONS: Final = 8
_MAX_DEPTH = 10
# Values that are listed again: llguidance compares each with each.
_MAX_LISTED = 20
_LISTS: Final = ("allOf", "anyOf", "oneOf")
# Keywords of which nothing is said here. They are by type, as they say nothing of others.
_UNSAID: Final = {
    "number": ("multipleOf",),
    "array": ("contains", "uniqueItems", "additionalItems", "unevaluatedItems"),
    "object": (
        "patternProperties",
        "propertyNames",
        "maxProperties",
        "dependencies",
        "dependentSchemas",
        "unevaluatedProperties",
    ),
}
_DYNAMIC: Final = ("$dynamicRef", "$recursiveRef")
_SAYS_NOTHING: Final[tuple[Json, ...]] = (None, True, False, {}, [])


class Part(NamedTuple):
    """A part of a complement.

    Attributes:
        schema: allows nothing that the other one allows.
        is_all: and everything else.
    """

    schema: Schema
    is_all: bool

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be said though there may be something."""
        return self.schema is False and not self.is_all


NOTHING: Final = Part(False, True)
EVERYTHING: Final = Part(True, True)
UNKNOWN: Final = Part(False, False)


class Complement(NamedTuple):
    """What a schema does not allow.

    Attributes:
        schema: of it.
        is_all: nothing is left out.
        lost: types of which nothing can be said though there may be something.
    """

    schema: Schema
    is_all: bool
    lost: Sequence[str]


def complement(
    doc: Document,
    schema: Json,
    known: Sequence[Json],
    max_options: int = MAX_OPTIONS,
    depth: int = _MAX_DEPTH,
) -> Complement:
    """Return what a schema does not allow.

    Args:
        doc: that the schema is from.
        schema: to be denied.
        known: schemas that hold all the same; options that contradict them are left out.
        max_options: of one type.
        depth: levels that are looked into.
    """
    writer = _Writer(doc, known, max_options)
    parts = {each: writer.without(schema, each, depth) for each in writer.types}
    whole = [each for each, part in parts.items() if part.schema is True]
    options: list[Schema] = [{"type": whole if len(whole) > 1 else whole[0]}] if whole else []
    said = ((each, part.schema) for each, part in parts.items() if isinstance(part.schema, dict))
    options += [{"type": each, **part} for each, part in said]
    lost = [each for each, part in parts.items() if part.is_lost]
    is_all = all(part.is_all for part in parts.values())
    return Complement(True if len(whole) == len(TYPES) else any_of(options), is_all, lost)


class _Writer:
    """Writes the parts of one complement.

    Attributes:
        types: that there may be.
    """

    def __init__(self, doc: Document, known: Sequence[Json], max_options: int) -> None:
        self._doc, self._known, self._max_options = doc, known, max_options
        self._facts = facts_of(doc, known)
        self.types = types_of_atoms(self._facts.atoms)

    def without(self, schema: Json, type_: str, depth: int) -> Part:
        """Return which values of a type are not valid for a schema."""
        if isinstance(schema, bool):
            return NOTHING if schema else EVERYTHING
        if not isinstance(schema, dict) or self._doc.draft < 4 or depth == 0 or not self._doc.spend():
            return UNKNOWN
        if "$ref" in schema:
            part = self.without(self._doc.target(schema), type_, depth - 1)
            return part if len(schema) == 1 else part._replace(is_all=False)
        atoms = atoms_of_type(schema.get("type"))
        if type_ not in types_of_atoms(atoms):
            return EVERYTHING
        # That a number is not whole cannot be said.
        is_cut = type_ == "number" and "fraction" in self._facts.atoms - atoms
        parts = [*([UNKNOWN] if is_cut else []), *self._of_keywords(schema, type_, depth)]
        return self._union(parts, type_)

    def _union(self, parts: Iterable[Part], type_: str) -> Part:
        """Return what is in some parts, as far as it is possible and not too much."""
        found = list(parts)
        schema = any_of(part.schema for part in found)
        if isinstance(schema, bool):
            return Part(schema, schema or all(part.is_all for part in found))
        options = schema["anyOf"] if set(schema) == {"anyOf"} else [schema]
        possible = [
            each for each in options if not is_impossible(self._doc, [*self._known, {"type": type_}, each])
        ]
        is_all = len(possible) <= self._max_options and all(part.is_all for part in found)
        return Part(any_of(possible[: self._max_options]), is_all)

    def _of_keywords(self, schema: Mapping[str, Json], type_: str, depth: int) -> Iterable[Part]:
        yield from self._values(schema, type_)
        for name in _LISTS:
            if isinstance(schema.get(name), list):
                yield self._of_list(name, schema[name], type_, depth)
        if "not" in schema:
            yield Part({"type": type_, "allOf": [schema["not"]]}, True)
        if "if" in schema and self._doc.knows("if"):
            yield from self._conditional(schema, type_, depth)
        unsaid = (*_UNSAID.get(type_, ()), *_DYNAMIC)
        yield from (UNKNOWN for name in unsaid if schema.get(name) not in _SAYS_NOTHING)
        if type_ in ("string", "number", "array"):
            yield from (Part(*each) for each in without_bounds(self._doc, schema, type_))
        if type_ == "array":
            yield from self._of_array(schema, depth)
        if type_ == "object":
            yield from self._without_required(schema)
            yield from self._without_values(schema, depth)

    def _values(self, schema: Mapping[str, Json], type_: str) -> Iterable[Part]:
        listed = [schema["enum"]] if isinstance(schema.get("enum"), list) else []
        listed += [[schema["const"]]] if "const" in schema and self._doc.knows("const") else []
        for values in listed:
            yield from self._other_values([value for value in values if type_of(value) == type_], type_)

    def _other_values(self, values: Sequence[Json], type_: str) -> Iterable[Part]:
        """Yield values of a type that are none of some of that type."""
        known = self._facts.values
        if known is not None:
            denied = {identity(value) for value in values}
            rest = [value for key, value in known.items() if key not in denied and type_of(value) == type_]
            if len(rest) <= _MAX_LISTED:
                yield Part({"enum": rest}, True) if rest else NOTHING
                return
            values = [value for value in values if identity(value) in known]
        if not values:
            yield EVERYTHING
        elif type_ == "string":
            yield Part(*other_texts(values))
        elif type_ == "number":
            yield Part(*other_numbers(values, whole=self._doc.has_fractions))
        elif type_ == "boolean":
            others = [value for value in (True, False) if value not in values]
            yield Part({"enum": others}, True) if others else NOTHING
        elif type_ == "array":
            # Arrays of other lengths.
            shortest, longest = min(map(len, values)), max(map(len, values))
            yield Part({"type": "array", "minItems": longest + 1}, False)
            yield Part({"type": "array", "maxItems": shortest - 1}, False) if shortest else UNKNOWN
        else:
            yield from [NOTHING] if type_ == "null" else self._other_objects(values)

    def _other_objects(self, values: Sequence[Mapping[str, Json]]) -> Iterable[Part]:
        """Yield objects that lack a property that all of some have."""
        yield UNKNOWN
        for name in values[0]:
            if all(name in value for value in values):
                yield Part({"type": "object", "properties": {name: False}}, False)

    def _of_list(self, name: str, schemas: Sequence[Json], type_: str, depth: int) -> Part:
        parts = [self.without(each, type_, depth - 1) for each in schemas]
        if name == "allOf":
            return self._union(parts, type_)
        none = Part(all_of(part.schema for part in parts), all(part.is_all for part in parts))
        # Two at once are not valid for oneOf either.
        return none if name == "anyOf" else none._replace(is_all=False)

    def _conditional(self, schema: Mapping[str, Json], type_: str, depth: int) -> Iterable[Part]:
        condition = schema["if"]
        if "then" in schema:
            part = self.without(schema["then"], type_, depth - 1)
            yield part._replace(schema=all_of([condition, part.schema]))
        if "else" in schema:
            unmet, part = (self.without(each, type_, depth - 1) for each in (condition, schema["else"]))
            yield Part(all_of([unmet.schema, part.schema]), unmet.is_all and part.is_all)

    def _of_array(self, schema: Mapping[str, Json], depth: int) -> Iterable[Part]:
        """Yield arrays whose first item is wrong."""
        if not {"items", "prefixItems"} & set(schema):
            return
        first = first_item(self._doc, schema)
        found = self._denied(first, self._facts.of_first_item(self._doc), depth)
        # Later items may be wrong as well.
        yield UNKNOWN
        if found.schema is not False:
            items = {} if found.schema is True else {"items": [found.schema]}
            yield Part({"type": "array", "minItems": 1, **items}, False)

    def _without_required(self, schema: Mapping[str, Json]) -> Iterable[Part]:
        for name in required_of(schema):
            yield Part({"type": "object", "properties": {name: False}}, True)
        for name, needed in mapping(schema.get("dependentRequired")).items():
            for each in listing(needed) if self._doc.knows("dependentRequired") else ():
                yield Part({"type": "object", "required": [name], "properties": {each: False}}, True)
        if schema.get("minProperties"):
            yield Part({"type": "object", "enum": [{}]}, schema["minProperties"] == 1)

    def _without_values(self, schema: Mapping[str, Json], depth: int) -> Iterable[Part]:
        properties = mapping(schema.get("properties"))
        for name, value in properties.items():
            yield self._without_value(name, value, depth)
        if schema.get("additionalProperties", True) in (True, {}):
            return
        yield UNKNOWN
        if not names_of_patterns(schema):
            for name in self._facts.names():
                if name not in properties:
                    yield self._without_value(name, schema["additionalProperties"], depth)

    def _without_value(self, name: str, value: Json, depth: int) -> Part:
        found = self._denied(value, self._facts.of_property(name), depth)
        if found.schema is False:
            return found
        properties = {} if found.schema is True else {"properties": {name: found.schema}}
        return Part({"type": "object", "required": [name], **properties}, found.is_all)

    def _denied(self, schema: Json, known: Sequence[Json], depth: int) -> Part:
        if depth == 1:
            return UNKNOWN
        found = complement(self._doc, schema, known, self._max_options, depth - 1)
        return Part(found.schema, found.is_all)
