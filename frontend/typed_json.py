"""What a decoded JSON value has against its type: the first fault, and fields that the type does not know."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import inspect

from splitserve.engine_core.errors import InvalidRequestError

# A place in a value: names of fields, and indices of entries of arrays.
Path = tuple[str | int, ...]

MAX_GOT_CHARS = 64
_MAX_FLOAT = sys.float_info.max
_ANY_KEY = "[...]"
# Types that have no bounds here; the fields' own checks name theirs.
_WORDS: dict[type[inspect.Type], str] = {
    inspect.BoolType: "true or false",
    inspect.FloatType: "a number",
    inspect.DictType: "an object",
    inspect.StructType: "an object",
    inspect.NoneType: "null",
}
_PLAIN_TYPES: dict[type[inspect.Type], frozenset[type]] = {
    inspect.IntType: frozenset([int]),
    inspect.FloatType: frozenset([int, float]),
    inspect.StrType: frozenset([str]),
    inspect.BoolType: frozenset([bool]),
}


class Fault(NamedTuple):
    """What is wrong with a value.

    Attributes:
        path: such as messages[0].role; "" is the value itself, [...] any value of an object without fields.
        message: the allowed values, and what stands there if that is of another type; without the path.
        is_missing: a field that has to be there is not.
    """

    path: str
    message: str
    is_missing: bool = False

    def error(self, whole: str) -> InvalidRequestError:
        """Return the error that names it; `whole` is what the value itself is called."""
        if self.is_missing:
            return InvalidRequestError(f"{self.path} is missing", self.path, "missing_required_parameter")
        return InvalidRequestError(f"{self.path or whole}: {self.message}", self.path or None)


class UnknownField(NamedTuple):
    """A field of an object whose type does not have it."""

    path: Path
    value: object

    @property
    def pattern(self) -> str:
        """The path without the indices, such as messages[].role."""
        return path_text(tuple("[]" if isinstance(step, int) else step for step in self.path))


def path_text(path: Path) -> str:
    """Return a path as errors write it."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step in (_ANY_KEY, "[]"):
            text += step
        else:
            text += f".{step}" if text else step
    return text


def find_fault(kind: type[msgspec.Struct], value: object) -> Fault | None:
    """Return the first thing for which msgspec.convert() refuses a value, or a number that is not finite.

    Args:
        kind: the type; its fields are numbers, strings, booleans, literals, arrays, objects and structs.
        value: JSON as Python has it.
    """
    return _fault(_options(_type_info(kind)), value, ())


def _fault(options: list[inspect.Type], value: object, path: Path) -> Fault | None:
    for option in options:
        if _fits(option, value):
            return _fault_inside(option, value, path)
    return Fault(path_text(path), f"expected {_allowed(options)}{_got(options, value)}")


def _fault_inside(kind: inspect.Type, value: Any, path: Path) -> Fault | None:
    match kind:
        case inspect.StructType():
            return _fault_of_fields(kind, value, path)
        case inspect.DictType(value_type=inner):
            return _first(_faults_of_values(_options(inner), value, path))
        case inspect.ListType(item_type=inner):
            return _first(_faults_of_items(_options(inner), value, path))
    return None


def _fault_of_fields(kind: inspect.StructType, value: Mapping[object, object], path: Path) -> Fault | None:
    fields = {field.encode_name: field for field in kind.fields}
    for name, inner in value.items():
        if not isinstance(name, str):
            return Fault(path_text(path), f"a key must be a string, got {_name_of(name)}")
        if name in fields:
            if (fault := _fault(_options(fields[name].type), inner, (*path, name))) is not None:
                return fault
        elif kind.forbid_unknown_fields:
            return Fault(path_text(path), f"object contains unknown field {name[:MAX_GOT_CHARS]}")
    for name, field in fields.items():
        if field.required and name not in value:
            return Fault(path_text((*path, name)), "it is missing", is_missing=True)
    return None


def _faults_of_values(
    options: list[inspect.Type], value: Mapping[object, object], path: Path
) -> Iterator[Fault | None]:
    for name, inner in value.items():
        if not isinstance(name, str):
            yield Fault(path_text(path), f"a key must be a string, got {_name_of(name)}")
        yield _fault(options, inner, (*path, _ANY_KEY))


def _faults_of_items(
    options: list[inspect.Type], value: Sequence[object], path: Path
) -> Iterator[Fault | None]:
    # A prompt may have millions of token ids: what has no bounds is passed over by its type alone.
    plain = frozenset[type]().union(*(_PLAIN_TYPES.get(type(o), ()) for o in options if not _is_bounded(o)))
    for i, inner in enumerate(value):
        if type(inner) not in plain:
            yield _fault(options, inner, (*path, i))


def _first(faults: Iterator[Fault | None]) -> Fault | None:
    return next((fault for fault in faults if fault is not None), None)


def _fits(kind: inspect.Type, value: Any) -> bool:
    """Tell whether a value is of a type, whatever it holds."""
    if not _is_of(kind, value):
        return False
    match kind:
        case inspect.LiteralType(values=values):
            return any(value == each and type(value) is type(each) for each in values)
        case inspect.IntType(ge=low, le=high):
            return (low is None or low <= value) and (high is None or value <= high)
        case (
            inspect.StrType(min_length=low, max_length=high)
            | inspect.ListType(min_length=low, max_length=high)
        ):
            return (low or 0) <= len(value) and (high is None or len(value) <= high)
        case inspect.DictType(max_length=high):
            return high is None or len(value) <= high
    return True


def _is_of(kind: inspect.Type, value: object) -> bool:
    match kind:
        case inspect.NoneType():
            return value is None
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.IntType():
            return isinstance(value, int) and not isinstance(value, bool)
        case inspect.FloatType():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return is_number and -_MAX_FLOAT <= cast(float, value) <= _MAX_FLOAT
        case inspect.StrType():
            return isinstance(value, str)
        case inspect.LiteralType(values=values):
            return any(type(value) is type(each) for each in values)
        case inspect.ListType():
            return isinstance(value, Sequence) and not isinstance(value, str | bytes)
        case inspect.DictType() | inspect.StructType():
            return isinstance(value, Mapping)
    return True


def _is_bounded(kind: inspect.Type) -> bool:
    return any(getattr(kind, name, None) is not None for name in ("ge", "le", "min_length", "max_length"))


def _allowed(options: list[inspect.Type]) -> str:
    return " or ".join(_words(option) for option in options)


def _words(kind: inspect.Type) -> str:
    match kind:
        case inspect.LiteralType(values=values):
            return " or ".join(msgspec.json.encode(value).decode() for value in sorted(values, key=str))
        case inspect.IntType(ge=low, le=high):
            return "an integer" + _bounds(" from", low, high, "")
        case inspect.StrType(min_length=low, max_length=high):
            return "a string" + _bounds(" of", low or (0 if high else None), high, " characters")
        case inspect.ListType(min_length=low, max_length=high):
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


def _got(options: list[inspect.Type], value: object) -> str:
    """Say what stands there; of the right type it is out of the range that is named."""
    if any(_is_of(option, value) and not isinstance(option, inspect.LiteralType) for option in options):
        return ""
    if isinstance(value, str) and any(isinstance(option, inspect.LiteralType) for option in options):
        return f", got {value[:MAX_GOT_CHARS]!r}"
    return f", got {_name_of(value)}"


def _name_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, int | float) and not -_MAX_FLOAT <= value <= _MAX_FLOAT:
        return "a number out of range"
    if isinstance(value, Mapping):
        return "object"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return "array"
    return type(value).__name__


@functools.lru_cache(maxsize=64)
def _type_info(kind: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(kind)


def _options(kind: inspect.Type) -> list[inspect.Type]:
    """Return the types of a union, without what is said about them beside bounds."""
    if isinstance(kind, inspect.Metadata):
        return _options(kind.type)
    if isinstance(kind, inspect.UnionType):
        return [option for member in kind.types for option in _options(member)]
    return [kind]


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
    found = _known_inside(_type_info(kind))
    assert found is not None
    return found


def _known_inside(kind: inspect.Type) -> _Known | None:
    for option in _options(kind):
        if isinstance(option, inspect.ListType):
            return _known_inside(option.item_type)
        if isinstance(option, inspect.StructType):
            inside = {field.encode_name: _known_inside(field.type) for field in option.fields}
            return _Known(frozenset(inside), {name: known for name, known in inside.items() if known})
    return None
