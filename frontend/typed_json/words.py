"""What a field may hold and what it holds instead, in words for an error."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import inspect

MAX_GOT_CHARS = 64
MAX_FLOAT = sys.float_info.max
# Types that have no bounds here; the fields' own checks name theirs.
_WORDS: dict[type[inspect.Type], str] = {
    inspect.BoolType: "true or false",
    inspect.FloatType: "a number",
    inspect.DictType: "an object",
    inspect.StructType: "an object",
    inspect.NoneType: "null",
}


def allowed(options: list[inspect.Type]) -> str:
    """Say what a union of types allows, bounds included."""
    return " or ".join(_words(option) for option in options)


def _words(kind: inspect.Type) -> str:
    match kind:
        case inspect.LiteralType(values=values):
            return " or ".join(msgspec.json.encode(value).decode() for value in sorted(values, key=str))
        case inspect.IntType(ge=low, le=high):
            return "an integer" + _bounds(" from", low, high, "")
        case inspect.StrType(min_length=low, max_length=high):
            return "a string" + _bounds(" of", low or (0 if high else None), high, " characters")
        case (
            inspect.ListType(min_length=low, max_length=high)
            | inspect.VarTupleType(min_length=low, max_length=high)
        ):
            return "an array" + _bounds(" of", low or (0 if high else None), high, " entries")
        case inspect.DictType(max_length=high) if high is not None:
            return f"an object of at most {high} entries"
    return _WORDS[type(kind)]


def _bounds(before: str, low: int | None, high: int | None, after: str) -> str:
    if low is None and high is None:
        return ""
    if high is None:
        return f"{before} at least {low}{after}"
    return f"{before} {low} to {high}{after}"


def name_of(value: object) -> str:
    """Say of what type a value is."""
    if value is None:
        return "null"
    if isinstance(value, int | float) and not -MAX_FLOAT <= value <= MAX_FLOAT:
        return "a number out of range"
    if isinstance(value, Mapping):
        return "object"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return "array"
    return type(value).__name__
