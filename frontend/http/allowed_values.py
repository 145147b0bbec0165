"""What may a field of a body hold, in words for an error message?"""

from __future__ import annotations

import functools
import re

import msgspec
from msgspec import inspect

_STEP = re.compile(r"\[[^\]]*\]|[^.\[\]]+")
# Types that have no bounds here; the fields' own checks name theirs.
_PLAIN: dict[type[inspect.Type], str] = {
    inspect.BoolType: "true or false",
    inspect.FloatType: "a number",
    inspect.DictType: "an object",
    inspect.StructType: "an object",
    inspect.NoneType: "null",
}


def allowed_values(kind: type[msgspec.Struct], path: str) -> str | None:
    """Return what the field at a path may hold, by its type and the bounds that are part of it.

    Args:
        kind: of the body.
        path: as msgspec writes it after "$.": names with dots, [0] for an entry, [...] for any value of an
            object; "" is the body.

    Returns:
        Such as 'true or false or "never" or null'; None when the path leads to no field, or to a type whose
        words are not known.
    """
    found: list[inspect.Type] = [_type_info(kind)]
    for step in _STEP.findall(path):
        found = [inner for outer in found for inner in _inside(outer, step)]
    words = [_words(option) for option in found]
    return " or ".join(word for word in words if word) if words and all(words) else None


@functools.lru_cache(maxsize=16)
def _type_info(kind: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(kind)


def _inside(outer: inspect.Type, step: str) -> list[inspect.Type]:
    """Return the types that one more step of a path may lead to, unions resolved."""
    match outer:
        case inspect.StructType(fields=fields):
            return [
                option for field in fields if field.encode_name == step for option in _options(field.type)
            ]
        case inspect.ListType(item_type=inner) if step[0] == "[":
            return _options(inner)
        case inspect.DictType(value_type=inner) if step == "[...]":
            return _options(inner)
    return []


def _options(kind: inspect.Type) -> list[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        return _options(kind.type)
    if isinstance(kind, inspect.UnionType):
        return [option for member in kind.types for option in _options(member)]
    return [kind]


def _words(kind: inspect.Type) -> str | None:
    match kind:
        case inspect.LiteralType(values=values):
            return " or ".join(msgspec.json.encode(value).decode() for value in sorted(values, key=str))
        case inspect.IntType(ge=low, le=high):
            return "an integer" + _bounds(" from", low, high, "")
        case inspect.StrType(min_length=low, max_length=high):
            return "a string" + _bounds(" of", low or (0 if high else None), high, " characters")
        case inspect.ListType(min_length=low, max_length=high):
            return "an array" + _bounds(" of", low or (0 if high else None), high, " entries")
    return _PLAIN.get(type(kind))


def _bounds(before: str, low: int | None, high: int | None, after: str) -> str:
    if low is None and high is None:
        return ""
    if high is None:
        return f"{before} at least {low}{after}"
    return f"{before} {low} to {high}{after}"
