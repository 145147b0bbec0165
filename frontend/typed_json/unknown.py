"""Which fields of a value's objects does its type not have?"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import inspect

from splitserve.frontend.typed_json.types import ANY_INDEX, Path, options_of, path_text, type_info


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


def unknown_fields(kind: type[msgspec.Struct], value: object) -> list[UnknownField]:
    """Return the fields that structs in a value do not have, where they let that pass.

    Args:
        kind: the type, no part of which holds itself.
        value: JSON as Python has it, which msgspec.convert() takes.
    """
    found: list[UnknownField] = []
    _add_unknown(_known(kind), value, (), found)
    return found


def _add_unknown(known: _Known, value: object, path: Path, found: list[UnknownField]) -> None:
    if isinstance(value, Mapping):
        if not known.names.issuperset(value):
            found += [UnknownField((*path, name), value[name]) for name in value if name not in known.names]
        for name, inner in known.inside.items():
            if (part := value.get(name)) is not None:
                _add_unknown(inner, part, (*path, name), found)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for i, part in enumerate(value):
            _add_unknown(known, part, (*path, i), found)


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
