"""`propertyNames` as properties that may be there, or as a pattern of their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from splitserve.frontend.text.grammar.refusal import RefusalError
from splitserve.frontend.text.grammar.rewrites.document import Document, names_of_patterns
from splitserve.frontend.text.grammar.rewrites.terms import Schema, all_of

Json = Any

# What is understood of names; `type` can only be string.
_UNDERSTOOD: Final = frozenset(("type", "enum", "const", "pattern", "minLength", "maxLength"))
_REMARKS: Final = frozenset(("title", "description", "$comment", "examples", "default", "$id"))


def without_names(doc: Document, node: Mapping[str, Json], known: Sequence[Json]) -> Schema:
    """Return what `propertyNames` of a schema says.

    Raises:
        RefusalError: it cannot be said.
    """
    names = node["propertyNames"]
    while isinstance(names, dict) and set(names) == {"$ref"} and doc.spend():
        names = doc.target(names)
    if isinstance(names, bool):
        return True if names else {"maxProperties": 0}
    if not isinstance(names, dict) or not set(names) <= _UNDERSTOOD | _REMARKS:
        raise RefusalError("propertyNames: only lists, lengths and patterns of names are supported")
    patterns = _patterns(names)
    if patterns and set(names_of_patterns(node)) - set(patterns):
        raise RefusalError("propertyNames: beside patternProperties only a list of names is supported")
    parts: list[Schema] = [
        {"patternProperties": {each: True}, "additionalProperties": False} for each in patterns
    ]
    for values in ([names["const"]] if "const" in names else [], names.get("enum")):
        if values:
            listed = {each: True for each in values if isinstance(each, str)}
            parts.append({"properties": listed, "additionalProperties": False})
    return all_of(parts)


def _patterns(names: Mapping[str, Json]) -> list[str]:
    least, most = names.get("minLength", 0), names.get("maxLength", "")
    lengths = f"^(?s:.){{{least},{most}}}$"
    found = [names["pattern"]] if isinstance(names.get("pattern"), str) else []
    return [*found, *([lengths] if {"minLength", "maxLength"} & set(names) else [])]
