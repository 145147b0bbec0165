"""For what does msgspec refuse a value? The place and the words, which its own errors give in prose only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import inspect

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.typed_json.types import ANY_KEY, Path, options_of, path_text, type_info
from splitserve.frontend.typed_json.words import MAX_FLOAT, MAX_GOT_CHARS, allowed, name_of

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


def find_fault(kind: type[msgspec.Struct], value: object) -> Fault | None:
    """Return the first thing for which msgspec.convert() refuses a value, or a number that is not finite.

    Args:
        kind: the type; its fields are numbers, strings, booleans, literals, arrays, objects and structs.
        value: JSON as Python has it.
    """
    return _fault(options_of(type_info(kind)), value, ())


def _fault(options: list[inspect.Type], value: object, path: Path) -> Fault | None:
    for option in options:
        if _fits(option, value):
            return _fault_inside(option, value, path)
    return Fault(path_text(path), f"expected {allowed(options)}{_got(options, value)}")


def _fault_inside(kind: inspect.Type, value: Any, path: Path) -> Fault | None:
    match kind:
        case inspect.StructType():
            return _fault_of_fields(kind, value, path)
        case inspect.DictType():
            return _first(_faults_of_values(kind, value, path))
        case inspect.ListType(item_type=inner) | inspect.VarTupleType(item_type=inner):
            return _first(_faults_of_items(options_of(inner), value, path))
    return None


def _fault_of_fields(kind: inspect.StructType, value: Mapping[object, object], path: Path) -> Fault | None:
    fields = {field.encode_name: field for field in kind.fields}
    for name, inner in value.items():
        if not isinstance(name, str):
            return Fault(path_text(path), f"a key must be a string, got {name_of(name)}")
        if name in fields:
            if (fault := _fault(options_of(fields[name].type), inner, (*path, name))) is not None:
                return fault
        elif kind.forbid_unknown_fields:
            return Fault(path_text(path), f"object contains unknown field {name[:MAX_GOT_CHARS]}")
    for name, field in fields.items():
        if field.required and name not in value:
            return Fault(path_text((*path, name)), "it is missing", is_missing=True)
    return None


def _faults_of_values(
    kind: inspect.DictType, value: Mapping[object, object], path: Path
) -> Iterator[Fault | None]:
    keys, options = options_of(kind.key_type), options_of(kind.value_type)
    for name, inner in value.items():
        if not any(_fits(key, name) for key in keys):
            yield Fault(path_text(path), f"a key must be {allowed(keys)}, got {name_of(name)}")
        yield _fault(options, inner, (*path, ANY_KEY))


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
            | inspect.VarTupleType(min_length=low, max_length=high)
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
            return is_number and -MAX_FLOAT <= cast(float, value) <= MAX_FLOAT
        case inspect.StrType():
            return isinstance(value, str)
        case inspect.LiteralType(values=values):
            return any(type(value) is type(each) for each in values)
        case inspect.ListType() | inspect.VarTupleType():
            return isinstance(value, Sequence) and not isinstance(value, str | bytes)
        case inspect.DictType() | inspect.StructType():
            return isinstance(value, Mapping)
    return True


def _is_bounded(kind: inspect.Type) -> bool:
    return any(getattr(kind, name, None) is not None for name in ("ge", "le", "min_length", "max_length"))


def _got(options: list[inspect.Type], value: object) -> str:
    """Say what stands there; of the right type it is out of the range that is named."""
    if any(_is_of(option, value) and not isinstance(option, inspect.LiteralType) for option in options):
        return ""
    if isinstance(value, str) and any(isinstance(option, inspect.LiteralType) for option in options):
        return f", got {value[:MAX_GOT_CHARS]!r}"
    return f", got {name_of(value)}"
