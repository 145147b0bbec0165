"""Which fields of a value's objects does its type not have?"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import inspect

from splitserve.frontend.typed_json.types import ANY_INDEX, Path, options_of, path_text, type_info

MAX_PATTERNS = 256

IsKnown = Callable[[str, object], bool]


def knows_nothing(pattern: str, value: object) -> bool:
    """Pass over no field."""
    return False


class UnknownField(NamedTuple):
    """A field of an object whose type does not have it."""

    path: Path
    value: object

    @property
    def pattern(self) -> str:
        """The path without the indices, such as messages[].role."""
        return path_text(tuple(ANY_INDEX if isinstance(step, int) else step for step in self.path))


class _Known(NamedTuple):
    """The fields of a struct, and those of the structs in it or in arrays of it, by field."""

    names: frozenset[str]
    inside: dict[str, _Known]


def unknown_fields(
    kind: type[msgspec.Struct], value: object, is_known: IsKnown = knows_nothing
) -> list[UnknownField]:
    """Return fields that structs in a value do not have, where they let that pass.

    Of those with equal patterns the first is returned, and of all patterns at most MAX_PATTERNS: a body may
    hold many.

    Args:
        kind: the type, no part of which holds itself.
        value: JSON as Python has it, which msgspec.convert() takes.
        is_known: tells of a pattern and a value whether they are passed over.
    """
    found: dict[str, UnknownField] = {}
    for pattern, path, name, inner in _walk(_known(kind), value, (), ""):
        if pattern not in found and not is_known(pattern, inner):
            found[pattern] = UnknownField((*path, name), inner)
            if len(found) == MAX_PATTERNS:
                break
    return list(found.values())


def _walk(known: _Known, value: object, path: Path, pattern: str) -> Iterator[tuple[str, Path, str, object]]:
    """Give each unknown field: its pattern, the path of its object, its name and its value."""
    if isinstance(value, Mapping):
        prefix = f"{pattern}." if pattern else ""
        if not known.names.issuperset(value):
            for name in value:
                if name not in known.names:
                    yield prefix + name, path, name, value[name]
        for name, inner in known.inside.items():
            if (part := value.get(name)) is not None:
                yield from _walk(inner, part, (*path, name), prefix + name)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for i, part in enumerate(value):
            yield from _walk(known, part, (*path, i), f"{pattern}{ANY_INDEX}")


@functools.lru_cache(maxsize=64)
def _known(kind: type[msgspec.Struct]) -> _Known:
    found = _known_inside(type_info(kind))
    assert found is not None
    return found


def _known_inside(kind: inspect.Type) -> _Known | None:
    for option in options_of(kind):
        if isinstance(option, inspect.ListType):
            return _known_inside(option.item_type)
        if isinstance(option, inspect.StructType):
            inside = {field.encode_name: _known_inside(field.type) for field in option.fields}
            return _Known(frozenset(inside), {name: known for name, known in inside.items() if known})
    return None
