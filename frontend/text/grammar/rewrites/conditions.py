"""`not`, `if`, `then`, `else` and what depends on a property: as `anyOf` of what may be the case."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from splitserve.frontend.text.grammar.refusal import RefusalError
from splitserve.frontend.text.grammar.rewrites.complement import complement
from splitserve.frontend.text.grammar.rewrites.document import Document
from splitserve.frontend.text.grammar.rewrites.terms import Schema, all_of, any_of, listing, mapping

Json = Any


def without_not(doc: Document, node: Mapping[str, Json], known: Sequence[Json]) -> Schema:
    """Return what the `not` of a schema says.

    Raises:
        RefusalError: it cannot be said.
    """
    return _denied(doc, node, known, "not")


def without_if(doc: Document, node: Mapping[str, Json], known: Sequence[Json]) -> Schema:
    """Return what `if`, `then` and `else` of a schema say.

    Raises:
        RefusalError: it cannot be said when the condition is not met.
    """
    met, unmet = (node.get(name, True) for name in ("then", "else"))
    if "if" not in node or (met in (True, {}) and unmet in (True, {})):
        return True
    return any_of([all_of([node["if"], met]), all_of([_denied(doc, node, known, "if"), unmet])])


def without_dependencies(doc: Document, node: Mapping[str, Json], known: Sequence[Json]) -> Schema:
    """Return what a schema says of objects that have a certain property."""
    type_ = {"type": "object"} if node.get("type") == "object" else {}
    parts = [
        any_of([{**type_, "properties": dict.fromkeys(names, False)}, {**type_, "required": needed}])
        for names, needed in _groups(_needed_names(node))
    ]
    for keyword in ("dependencies", "dependentSchemas"):
        for name, schema in mapping(node.get(keyword)).items():
            if isinstance(schema, dict | bool):
                has_none = {**type_, "properties": {name: False}}
                parts.append(any_of([has_none, all_of([{**type_, "required": [name]}, schema])]))
    return all_of(parts)


def _denied(doc: Document, node: Mapping[str, Json], known: Sequence[Json], keyword: str) -> Schema:
    dependent = ("if", "then", "else") if keyword == "if" else (keyword,)
    beside = {key: value for key, value in node.items() if key not in dependent}
    found = complement(doc, node[keyword], [*known, beside])
    if found.lost:
        raise RefusalError(f"{keyword}: it cannot be said which values of type {found.lost[0]} are not valid")
    return found.schema


def _needed_names(node: Mapping[str, Json]) -> dict[str, list[str]]:
    needed: defaultdict[str, list[str]] = defaultdict(list)
    for keyword in ("dependencies", "dependentRequired"):
        for name, value in mapping(node.get(keyword)).items():
            # In draft 3 one name needs no list.
            names = [value] if isinstance(value, str) else listing(value)
            needed[name] += [each for each in names if isinstance(each, str)]
    return {name: names for name, names in needed.items() if names}


def _groups(needed: Mapping[str, list[str]]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield names that need the same names, all that follows from it counted in.

    Each group makes two options of a schema, and all groups together their product, so few groups are wanted.
    """
    closures = {name: _closure(name, needed) for name in needed}
    mutual: dict[frozenset[str], list[str]] = {}
    for name, closure in closures.items():
        mutual.setdefault(frozenset(closure), []).append(name)
    alone: dict[frozenset[str], list[str]] = {}
    for members, names in mutual.items():
        if len(names) > 1:
            yield names, closures[names[0]]
        else:
            alone.setdefault(members - set(names), []).extend(names)
    for rest, names in alone.items():
        yield names, [each for each in closures[names[0]] if each in rest]


def _closure(name: str, needed: Mapping[str, list[str]]) -> list[str]:
    """Return all that follows from a name, in the order in which it is needed, itself last."""
    found, waiting = dict[str, None](), list(needed[name])
    while waiting:
        each = waiting.pop(0)
        if each not in found:
            found[each] = None
            waiting += needed.get(each, [])
    return [*(each for each in found if each != name), name]
