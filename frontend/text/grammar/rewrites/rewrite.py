"""Rewrites a schema into one that llguidance serves, so that whatever is written is valid for the given one.

Every keyword that llguidance does not implement, or not always, is taken out and said with others. What is
said instead allows the same, or less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from splitserve.frontend.text.grammar.refusal import RefusalError
from splitserve.frontend.text.grammar.rewrites.conditions import (
    without_dependencies,
    without_if,
    without_not,
)
from splitserve.frontend.text.grammar.rewrites.counts import counted
from splitserve.frontend.text.grammar.rewrites.document import Document
from splitserve.frontend.text.grammar.rewrites.formats import instead_of, is_served
from splitserve.frontend.text.grammar.rewrites.names import without_names
from splitserve.frontend.text.grammar.rewrites.one_of import without_one_of
from splitserve.frontend.text.grammar.rewrites.patterns import without_nul
from splitserve.frontend.text.grammar.rewrites.places import DEFINITIONS, LISTS, MAPS, SINGLE, Places
from splitserve.frontend.text.grammar.rewrites.terms import Schema, listing, mapping

Json = Any


class _Rule(NamedTuple):
    """How keywords are said with others.

    Attributes:
        keywords: of which one has to be there.
        instead: what is said, given what holds beside the schema.
        is_taken: the keywords are taken out.
    """

    keywords: tuple[str, ...]
    instead: Callable[[Document, Mapping[str, Json], Sequence[Json]], Schema]
    is_taken: bool = True


_RULES: Final = (
    _Rule(("oneOf",), without_one_of),
    _Rule(("not",), without_not),
    _Rule(("if", "then", "else"), without_if),
    _Rule(("dependencies", "dependentRequired", "dependentSchemas"), without_dependencies),
    _Rule(("propertyNames",), without_names),
    _Rule(("minProperties", "maxProperties"), counted, is_taken=False),
)
_TOO_MANY: Final = "too many cases: its parts cannot be told apart in time"
_TRIGGERS: Final = tuple(keyword for rule in _RULES for keyword in rule.keywords)


def rewrite(schema: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return a schema that llguidance serves and whose values are valid for a given one.

    Raises:
        RefusalError: something of it cannot be said, with its path; or nothing is valid.
    """
    places = Places(schema)
    if not any(_is_changed(node) for node in places.nodes()):
        return schema
    return _Rewriter(schema, places).whole()


def _is_changed(node: Mapping[str, Json]) -> bool:
    patterns = (node.get("pattern"), *mapping(node.get("patternProperties")))
    has_set = any(isinstance(each, str) and "[^" in each for each in patterns)
    return has_set or _has_other_format(node) or any(keyword in node for keyword in _TRIGGERS)


def _has_other_format(node: Mapping[str, Json]) -> bool:
    found = node.get("format")
    return isinstance(found, str) and not is_served(found)


class _Rewriter:
    """Rewrites one schema."""

    def __init__(self, root: Mapping[str, Json], places: Places) -> None:
        self._root, self._places = root, places
        self._doc = Document(root, places.nodes())
        # Targets of references to places that are taken out: id -> name in $defs.
        self._moved: dict[int, str] = {}
        self._waiting: list[Mapping[str, Json]] = []

    def whole(self) -> Mapping[str, Json]:
        """Return the whole schema."""
        rewritten = self._schema(self._root, "")
        if not isinstance(rewritten, dict):
            raise RefusalError("Unsatisfiable schema: its parts exclude each other")
        while self._waiting:
            target = self._waiting.pop()
            definitions = mapping(rewritten.get("$defs"))
            rewritten = {
                **rewritten,
                "$defs": {**definitions, self._moved[id(target)]: self._schema(target, "")},
            }
        return rewritten

    def _schema(self, node: Json, path: str, known: Sequence[Json] = ()) -> Json:
        """Return a schema instead of another one.

        Args:
            node: the other one.
            path: of it, or of those that it is made of.
            known: schemas that hold beside it wherever it is used.
        """
        if not isinstance(node, dict):
            return node
        path = self._places.paths[id(node)][0] if id(node) in self._places.paths else path
        if not self._doc.spend():
            raise RefusalError(_TOO_MANY, path)
        rules = [rule for rule in _RULES if self._applies(rule.keywords, node)]
        taken = {keyword for rule in rules for keyword in rule.keywords if rule.is_taken}
        rewritten = {key: self._kept(key, node, path, known) for key in node if key not in taken}
        said = [self._said(rule, node, path, known) for rule in rules]
        if _has_other_format(node):
            said.append(instead_of(rewritten.pop("format")))
        if any(each is False for each in said):
            return False
        return _joined(node, rewritten, [each for each in said if each not in (True, {})])

    def _applies(self, keywords: tuple[str, ...], node: Mapping[str, Json]) -> bool:
        if keywords == ("oneOf",) and not isinstance(node.get("oneOf"), list):
            return False
        return any(keyword in node and self._doc.knows(keyword) for keyword in keywords)

    def _said(self, rule: _Rule, node: Mapping[str, Json], path: str, known: Sequence[Json]) -> Json:
        try:
            said = rule.instead(self._doc, node, known)
        except RefusalError as error:
            raise RefusalError(_TOO_MANY if self._doc.is_spent else str(error), path) from None
        beside = {key: value for key, value in node.items() if key not in rule.keywords}
        return self._schema(said, path, (*known, beside))

    def _kept(self, key: str, node: Mapping[str, Json], path: str, known: Sequence[Json]) -> Json:
        value = node[key]
        if key == "$ref":
            return self._reference(value)
        if key == "pattern" and isinstance(value, str):
            return without_nul(value)
        if key in DEFINITIONS and isinstance(value, dict):
            return {name: self._definition(each, path) for name, each in value.items()}
        if key in ("allOf", "anyOf") and isinstance(value, list):
            return self._parts(key, node, path, known)
        return _mapped(key, value, lambda child: self._schema(child, path))

    def _parts(self, key: str, node: Mapping[str, Json], path: str, known: Sequence[Json]) -> list[Json]:
        beside = [*known, {name: value for name, value in node.items() if name != key}]
        if key == "anyOf":
            return [self._schema(each, path, beside) for each in node[key]]
        parts = enumerate(node[key])
        return [self._schema(each, path, [*beside, *node[key][:i], *node[key][i + 1 :]]) for i, each in parts]

    def _definition(self, node: Json, path: str) -> Json:
        """Return what stands instead of a definition: of what nobody needs, itself."""
        if not isinstance(node, dict) or self._places.is_used(node):
            return self._schema(node, path)
        return {
            key: _mapped(key, value, lambda child: self._definition(child, path))
            for key, value in node.items()
        }

    def _reference(self, pointer: Json) -> Json:
        target = self._doc.target({"$ref": pointer})
        if target is None or self._places.stays(target):
            return pointer
        if id(target) not in self._moved:
            self._moved[id(target)] = f"moved {len(self._moved)}"
            self._waiting.append(target)
        return f"#/$defs/{self._moved[id(target)].replace(' ', '%20')}"


def _joined(node: Mapping[str, Json], rewritten: dict[str, Json], said: list[Json]) -> Mapping[str, Json]:
    """Return a schema together with what is said instead of keywords taken out of it."""
    first = said[0] if said else {}
    if "oneOf" in node and "anyOf" not in node and set(first) == {"anyOf"}:
        # At its place: the order of keywords is that of properties in the output.
        keys = [("anyOf" if key == "oneOf" else key) for key in node]
        rewritten = {key: {**rewritten, **first}[key] for key in keys if key in {**rewritten, **first}}
        said = said[1:]
    if not said:
        return rewritten
    return {**rewritten, "allOf": [*listing(rewritten.get("allOf")), *said]}


def _mapped(key: str, value: Json, change: Callable[[Json], Json]) -> Json:
    """Return the value of a keyword with the schemas in it changed."""
    if key in MAPS and isinstance(value, dict):
        name_of = without_nul if key == "patternProperties" else str
        return {name_of(name): change(each) for name, each in value.items()}
    if key in LISTS and isinstance(value, list):
        return [change(each) for each in value]
    return change(value) if key in SINGLE else value
