"""`oneOf` as `anyOf`: of its options if they exclude each other, of what only one of them allows if not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

from splitserve.frontend.text.grammar.refusal import RefusalError
from splitserve.frontend.text.grammar.rewrites.complement import complement
from splitserve.frontend.text.grammar.rewrites.document import Document
from splitserve.frontend.text.grammar.rewrites.impossible import facts_of, is_impossible
from splitserve.frontend.text.grammar.rewrites.terms import Schema, all_of, any_of

Json = Any

# What llguidance makes of one option: the product of what is said of each other one.
_MAX_OPTIONS = 8


class _Marks(NamedTuple):
    """What quickly tells an option from others.

    Attributes:
        atoms: of types.
        values: the only ones there may be, by identity; None for any.
        required: names that an object has.
        listed: names of properties of which only some values may be, with these.
    """

    atoms: frozenset[str]
    values: Set[str] | None
    required: Set[str]
    listed: Mapping[str, Set[str]]


def without_one_of(doc: Document, node: Mapping[str, Json], known: Sequence[Json]) -> Schema:
    """Return what the `oneOf` of a schema says, as `anyOf`.

    Args:
        doc: that the schema is from.
        node: the schema.
        known: schemas that hold beside it.

    Raises:
        RefusalError: two options may be valid at once, and what only one allows cannot be said.
    """
    beside = [*known, {key: value for key, value in node.items() if key != "oneOf"}]
    options = [each for each in node["oneOf"] if not is_impossible(doc, [*beside, each])]
    marks = [_marks(doc, [*beside, each]) for each in options]
    alone = []
    for i, option in enumerate(options):
        others = (j for j in range(len(options)) if j != i and not _differ(marks[i], marks[j]))
        overlapping = [j for j in others if not is_impossible(doc, [*beside, option, options[j]])]
        alone.append(_without(doc, options, i, overlapping, beside))
    return any_of(alone)


def _without(
    doc: Document, options: Sequence[Json], i: int, others: Sequence[int], beside: Sequence[Json]
) -> Schema:
    """Return what one option allows and some others do not."""
    parts: list[Schema] = [options[i]]
    for j in others:
        max_options = max(1, int(_MAX_OPTIONS ** (1 / len(others))))
        found = complement(doc, options[j], [*beside, options[i]], max_options)
        if found.lost:
            raise RefusalError(f"oneOf: options {min(i, j)} and {max(i, j)} may both be valid")
        parts.append(found.schema)
    return all_of(parts)


def _marks(doc: Document, schemas: Sequence[Json]) -> _Marks:
    facts = facts_of(doc, schemas)
    names = facts.names() if "object" in facts.atoms else []
    found = ((name, facts_of(doc, facts.of_property(name)).values) for name in names)
    listed = {name: values.keys() for name, values in found if values is not None}
    values = None if facts.values is None else facts.values.keys()
    return _Marks(facts.atoms, values, facts.required.keys(), listed)


def _differ(one: _Marks, other: _Marks) -> bool:
    """Tell whether it is plain that no value is of both."""
    if one.values is not None and other.values is not None and one.values.isdisjoint(other.values):
        return True
    if not one.atoms & other.atoms <= {"object"}:
        return False
    return not one.atoms & other.atoms or any(
        values.isdisjoint(other.listed[name])
        for name, values in one.listed.items()
        if name in other.listed and (name in one.required or name in other.required)
    )
