"""Can no value be valid for several schemas at once? Proofs of it, so that False means "not proved".

What each of the schemas says is collected, references and allOf followed, until two of them contradict each
other: in type, in listed values, in bounds, or in a property that an object has to have. Where one of them
is a choice, each of its options has to be impossible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from splitserve.frontend.text.grammar.rewrites.document import Document, names_of_patterns, required_of
from splitserve.frontend.text.grammar.rewrites.patterns import is_no_text
from splitserve.frontend.text.grammar.rewrites.terms import (
    ATOMS,
    atom_of,
    atoms_of_type,
    identity,
    listing,
    mapping,
)

Json = Any

_MAX_CHOICES = 3
_MAX_DEPTH = 12
# Characters of patterns and of listed texts that are looked at together, and the steps that it takes.
_MAX_PATTERN, _MAX_TEXT, _STEPS_OF_TEXT = 300, 2000, 50
_LOWER: Final = frozenset(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"))
_UPPER: Final = frozenset(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"))


@dataclass(slots=True)
class Facts:
    """What some schemas say together; everything that is valid for all of them keeps to it.

    Attributes:
        atoms: of types.
        values: the only ones there may be, by identity; None for any.
        objects: those that say something about properties.
        arrays: those that say something about items.
        required: names that an object has.
        absent: names that an object has not.
        choices: lists of schemas, one of each list holds.
        patterns: that a text matches.
        bounds: keyword -> the strictest bound.
        is_false: one of them allows nothing.
    """

    atoms: frozenset[str] = ATOMS
    values: dict[str, Json] | None = None
    objects: list[Mapping[str, Json]] = field(default_factory=list)
    arrays: list[Mapping[str, Json]] = field(default_factory=list)
    required: dict[str, None] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    choices: list[list[Json]] = field(default_factory=list)
    patterns: dict[str, None] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)
    is_false: bool = False

    def names(self) -> list[str]:
        """Return the names of properties that are spoken of, those required first."""
        listed = (name for node in self.objects for name in mapping(node.get("properties")))
        return list(dict.fromkeys([*self.required, *listed]))

    def of_property(self, name: str) -> list[Json]:
        """Return schemas that the value of a property is valid for."""
        if name in self.absent:
            return [False]
        found = []
        for node in self.objects:
            properties = mapping(node.get("properties"))
            if name in properties:
                found.append(properties[name])
            elif "additionalProperties" in node and not names_of_patterns(node):
                found.append(node["additionalProperties"])
        return found

    def of_first_item(self, doc: Document) -> list[Json]:
        """Return schemas that the first item of an array is valid for."""
        return [first_item(doc, node) for node in self.arrays]


def first_item(doc: Document, node: Mapping[str, Json]) -> Json:
    """Return the schema of the first item of an array; true if any may be."""
    items = node.get("items", True)
    listed = items if isinstance(items, list) else node.get("prefixItems") if doc.knows("prefixItems") else []
    return listed[0] if isinstance(listed, list) and listed else (True if isinstance(items, list) else items)


def facts_of(doc: Document, schemas: Iterable[Json]) -> Facts:
    """Return what some schemas say together."""
    facts, waiting, seen = Facts(), list(schemas), set[int]()
    while waiting:
        node = waiting.pop()
        if node is False:
            facts.is_false = True
        if not isinstance(node, dict) or id(node) in seen or doc.draft < 4 or not doc.spend():
            continue
        seen.add(id(node))
        if "$ref" in node:
            # What stands beside it says something in the newer drafts only.
            waiting.append(doc.target(node))
            continue
        waiting += listing(node.get("allOf"))
        _collect(doc, facts, node)
    return facts


def is_impossible(
    doc: Document, schemas: Iterable[Json], depth: int = _MAX_DEPTH, num_choices: int = _MAX_CHOICES
) -> bool:
    """Tell whether it is certain that no value is valid for all of some schemas."""
    given = list(schemas)
    if depth == 0 or not doc.spend():
        return False
    facts = facts_of(doc, given)
    if facts.is_false or not _possible_atoms(doc, facts, depth, num_choices):
        return True
    if num_choices == 0:
        return False
    return any(
        all(is_impossible(doc, [*given, option], depth - 1, num_choices - 1) for option in options)
        for options in facts.choices
    )


def _collect(doc: Document, facts: Facts, node: Mapping[str, Json]) -> None:
    if "type" in node:
        facts.atoms &= atoms_of_type(node["type"])
    listed = node.get("enum")
    if isinstance(listed, list):
        _restrict(facts, listed)
    if "const" in node and doc.knows("const"):
        _restrict(facts, [node["const"]])
    for name in ("anyOf", "oneOf"):
        if isinstance(node.get(name), list) and node[name]:
            facts.choices.append(node[name])
    if any(name in node for name in ("properties", "patternProperties", "additionalProperties")):
        facts.objects.append(node)
    if isinstance(node.get("pattern"), str):
        facts.patterns[node["pattern"]] = None
    if "items" in node or "prefixItems" in node:
        facts.arrays.append(node)
    facts.required |= dict.fromkeys(required_of(node))
    denied = node.get("not")
    if isinstance(denied, dict) and set(denied) == {"required"} and len(required_of(denied)) == 1:
        facts.absent.update(required_of(denied))
    _collect_bounds(doc, facts, node)


def _collect_bounds(doc: Document, facts: Facts, node: Mapping[str, Json]) -> None:
    for name, value in node.items():
        if name.startswith("exclusive") and doc.draft < 6:
            continue
        # Python reads 1e400 as infinite.
        if name in _LOWER | _UPPER and type(value) in (int, float) and math.isfinite(value):
            pick = max if name in _LOWER else min
            facts.bounds[name] = pick(facts.bounds.get(name, value), value)


def _restrict(facts: Facts, values: Iterable[Json]) -> None:
    allowed = {identity(value): value for value in values}
    known = facts.values
    facts.values = allowed if known is None else {key: known[key] for key in known if key in allowed}


def _possible_atoms(doc: Document, facts: Facts, depth: int, num_choices: int) -> set[str]:
    atoms = set(facts.atoms)
    if facts.values is not None:
        atoms &= {atom_of(value) for value in facts.values.values() if _is_within(value, facts)}
    for atom, lower, upper in (
        ("string", "minLength", "maxLength"),
        ("array", "minItems", "maxItems"),
        ("object", "minProperties", "maxProperties"),
    ):
        if facts.bounds.get(lower, 0) > facts.bounds.get(upper, math.inf):
            atoms.discard(atom)
    if "string" in atoms and _lacks_text(doc, facts):
        atoms.discard("string")
    if not _has_number(facts.bounds):
        atoms -= {"integer", "fraction"}
    if "array" in atoms and facts.bounds.get("minItems", 0) >= 1:
        first = facts.of_first_item(doc)
        if len(first) > 1 and is_impossible(doc, first, depth - 1, num_choices):
            atoms.discard("array")
    if "object" in atoms and _lacks_property(doc, facts, depth, num_choices):
        atoms.discard("object")
    return atoms


def _lacks_text(doc: Document, facts: Facts) -> bool:
    """Tell whether no text can match what is asked of it."""
    texts = (
        None if facts.values is None else [each for each in facts.values.values() if isinstance(each, str)]
    )
    if len(facts.patterns) + (texts is not None) < 2:
        return False
    if sum(map(len, facts.patterns)) > _MAX_PATTERN or sum(map(len, texts or ())) > _MAX_TEXT:
        return False
    return doc.spend(_STEPS_OF_TEXT) and is_no_text(list(facts.patterns), texts)


def _is_within(value: Json, facts: Facts) -> bool:
    """Tell whether a listed value may be valid, by what is quickly told."""
    if isinstance(value, str):
        return facts.bounds.get("minLength", 0) <= len(value) <= facts.bounds.get("maxLength", math.inf)
    if atom_of(value) in ("integer", "fraction"):
        return _has_number(facts.bounds | _at(value, facts.bounds))
    return not isinstance(value, dict) or (
        all(name in value for name in facts.required) and not facts.absent & set(value)
    )


def _at(value: float, bounds: Mapping[str, float]) -> dict[str, float]:
    lower, upper = bounds.get("minimum", value), bounds.get("maximum", value)
    return {"minimum": max(lower, value), "maximum": min(upper, value)}


def _has_number(bounds: Mapping[str, float]) -> bool:
    lower, above = bounds.get("minimum", -math.inf), bounds.get("exclusiveMinimum", -math.inf)
    upper, below = bounds.get("maximum", math.inf), bounds.get("exclusiveMaximum", math.inf)
    return lower <= upper and above < below and above < upper and lower < below


def _lacks_property(doc: Document, facts: Facts, depth: int, num_choices: int) -> bool:
    """Tell whether some property that an object must have can have no value."""
    if not facts.objects and not facts.absent:
        return False
    found = (facts.of_property(name) for name in facts.required)
    return any(
        schemas == [False] or (len(schemas) > 1 and is_impossible(doc, schemas, depth - 1, num_choices))
        for schemas in found
    )
