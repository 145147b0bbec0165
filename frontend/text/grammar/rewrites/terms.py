"""Schemas put together from others, simplified where that is plain, and what JSON values are to a schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

Json = Any
Schema = Mapping[str, Json] | bool

TYPES: Final = ("null", "boolean", "number", "string", "array", "object")
# A number is whole or it is not; what schema calls an integer is whole.
ATOMS: Final = frozenset(("null", "boolean", "integer", "fraction", "string", "array", "object"))


def any_of(options: Iterable[Schema]) -> Schema:
    """Return what allows whatever one of some schemas allows."""
    found: list[Schema] = []
    for each in options:
        inner = each["anyOf"] if isinstance(each, Mapping) and set(each) == {"anyOf"} else [each]
        found += [option for option in inner if option is not False]
    if any(each is True or each == {} for each in found):
        return True
    if not found:
        return False
    return found[0] if len(found) == 1 else {"anyOf": found}


def all_of(parts: Iterable[Schema]) -> Schema:
    """Return what allows only what all of some schemas allow."""
    found = [each for each in parts if each is not True and each != {}]
    if any(each is False for each in found):
        return False
    if not found:
        return True
    return found[0] if len(found) == 1 else {"allOf": found}


def atoms_of_type(named: Json) -> frozenset[str]:
    """Return the atoms that the keyword `type` allows; all of them if it is absent or not understood."""
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        return ATOMS
    found = {atom for name in names for atom in (("integer", "fraction") if name == "number" else (name,))}
    return frozenset(found) & ATOMS


def type_of(value: Json) -> str:
    """Return the type of a JSON value, one of TYPES."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def atom_of(value: Json) -> str:
    """Return the atom of a JSON value."""
    found = type_of(value)
    if found != "number":
        return found
    return "integer" if isinstance(value, int) or value.is_integer() else "fraction"


def types_of_atoms(atoms: Iterable[str]) -> list[str]:
    """Return the types that some atoms are of, in the order of TYPES."""
    found = {"number" if atom in ("integer", "fraction") else atom for atom in atoms}
    return [each for each in TYPES if each in found]


def identity(value: Json) -> str:
    """Return a text that is the same for JSON values that are equal to JSON schema."""
    return json.dumps(_plain(value), sort_keys=True)


def mapping(value: Json) -> Mapping[str, Json]:
    """Return a value that is an object, an empty one for others."""
    return value if isinstance(value, dict) else {}


def listing(value: Json) -> list[Json]:
    """Return a value that is a list, an empty one for others."""
    return value if isinstance(value, list) else []


def _plain(value: Json) -> Json:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return {key: _plain(each) for key, each in value.items()} if isinstance(value, dict) else value
