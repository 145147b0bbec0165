"""The types of fields as both walks over a value see them, and the words for a place in it."""

from __future__ import annotations

import functools

import msgspec
from msgspec import inspect

# A place in a value: names of fields, and indices of entries of arrays.
Path = tuple[str | int, ...]

ANY_KEY = "[...]"
ANY_INDEX = "[]"


def path_text(path: Path) -> str:
    """Return a path as errors write it."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step in (ANY_KEY, ANY_INDEX):
            text += step
        else:
            text += f".{step}" if text else step
    return text


@functools.lru_cache(maxsize=64)
def type_info(kind: type[msgspec.Struct]) -> inspect.Type:
    """Return what msgspec knows of a struct; remembered."""
    return inspect.type_info(kind)


def options_of(kind: inspect.Type) -> list[inspect.Type]:
    """Return the types of a union, without what is said about them beside bounds."""
    if isinstance(kind, inspect.Metadata):
        return options_of(kind.type)
    if isinstance(kind, inspect.UnionType):
        return [option for member in kind.types for option in options_of(member)]
    return [kind]
