"""Can a JSON schema be served? Limits, and what llguidance would serve wrong without a word.

llguidance itself refuses the keywords it does not implement and most schemas that nothing is valid for. It
does not see a schema that refers to itself so that no instance is ever complete, takes bounds as floats, and
lets a whole number pass that is an exclusive bound of a number if the other bound is less than 1 away.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from splitserve.frontend.text.grammar.refusal import RefusalError

MAX_SCHEMA_BYTES = 2**17
# llguidance reads 128, and what is around the schema takes some.
MAX_SCHEMA_DEPTH = 100
MAX_PROPERTIES = 5000
MAX_ENUM_VALUES = 10_000
MAX_EXACT_INTEGER = 2**53
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE: Final = (
    "items",
    "additionalItems",
    "additionalProperties",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "unevaluatedProperties",
    "unevaluatedItems",
)

# How llguidance's errors quote values.
_QUOTED: Final = {
    "format": "Unknown format: {}",
    "type": "Invalid type: {}",
    "pattern": "regex parse error:\n    {}\n",
    "$ref": "{}'",
}

Json = Any
Schema = Mapping[str, Json]


def read_schema(given: object) -> Schema:
    """Return a schema that llguidance may be given.

    Args:
        given: an object, its text, or a switch.

    Raises:
        RefusalError: it is no schema, is over a limit, or would be served wrong.
    """
    schema = _parse(given) if isinstance(given, str) else given
    if schema is True:
        return {}
    if schema is False:
        raise RefusalError("the schema false is not satisfiable")
    if not isinstance(schema, dict):
        raise RefusalError(f"a JSON schema must be an object, got {type(schema).__name__}")
    size = len(json.dumps(schema, ensure_ascii=False))
    if size > MAX_SCHEMA_BYTES:
        raise RefusalError(f"a JSON schema must have at most {MAX_SCHEMA_BYTES} characters, got {size}")
    _check_depth(schema)
    nodes = dict(walk(schema))
    _check_counts(nodes)
    for path, node in nodes.items():
        _check_numbers(path, node)
    for path, node in nodes.items():
        _check_exclusive(path, node)
    _check_finite(schema, nodes)
    return schema


def walk(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Return all schemas within a schema, itself first, with their dotted paths."""
    waiting = [(path, schema)]
    while waiting:
        at, node = waiting.pop()
        yield at, node
        within = [(_join(at, name), child) for name, child in children(node) if isinstance(child, dict)]
        waiting.extend(reversed(within))


def find_fault(schema: Schema, message: str) -> str:
    """Return the path of the first schema that one of llguidance's errors is about, "" if it is not known."""
    keys = re.search(r"Unimplemented keys: (\[.*?\])", message)
    named = json.loads(keys[1]) if keys else []
    for path, node in walk(schema):
        if any(key in node for key in named) or any(_is_about(message, *each) for each in node.items()):
            return path
    return ""


def _is_about(message: str, key: str, value: Json) -> bool:
    """Tell whether an error quotes the value of a keyword."""
    form = _QUOTED.get(key)
    return form is not None and isinstance(value, str) and form.format(value.removeprefix("#")) in message


def _parse(text: str) -> Json:
    try:
        return json.loads(text)
    except ValueError as error:
        raise RefusalError(f"it is not JSON: {error}") from None


def _check_depth(schema: Json) -> None:
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > MAX_SCHEMA_DEPTH:
            raise RefusalError(f"a JSON schema must be nested at most {MAX_SCHEMA_DEPTH} deep")
        level = [
            child
            for value in level
            for child in (value.values() if isinstance(value, dict) else value)
            if isinstance(child, dict | list)
        ]


def _check_counts(nodes: Mapping[str, Schema]) -> None:
    num_properties = sum(len(_dict(node.get("properties"))) for node in nodes.values())
    if num_properties > MAX_PROPERTIES:
        raise RefusalError(
            f"a JSON schema must have at most {MAX_PROPERTIES} properties, got {num_properties}"
        )
    num_values = sum(len(_list(node.get("enum"))) for node in nodes.values())
    if num_values > MAX_ENUM_VALUES:
        raise RefusalError(f"a JSON schema must have at most {MAX_ENUM_VALUES} enum values, got {num_values}")


def _check_numbers(path: str, node: Schema) -> None:
    for name in _BOUNDS:
        value = node.get(name)
        if isinstance(value, int) and abs(value) > MAX_EXACT_INTEGER:
            raise RefusalError(f"{name} must be within 2**53, got {str(value)[:40]}", path)


def _check_exclusive(path: str, node: Schema) -> None:
    if node.get("type") == "integer":
        return
    parts = [node, *(each for each in _list(node.get("allOf")) if isinstance(each, dict))]
    for name, others in (
        ("Minimum", ("maximum", "exclusiveMaximum")),
        ("Maximum", ("minimum", "exclusiveMinimum")),
    ):
        exclusive = _numbers(parts, f"exclusive{name}")
        if any(part.get(f"exclusive{name}") is True for part in parts):
            # As in draft 4.
            exclusive += _numbers(parts, name.lower())
        for bound in exclusive:
            if bound == math.floor(bound) and any(
                0 < abs(bound - other) < 1 for other in _numbers(parts, *others)
            ):
                words = f"exclusive{name} {bound:g} is not supported with another bound less than 1 away"
                raise RefusalError(words, path)


def _numbers(parts: Iterable[Schema], *names: str) -> list[float]:
    found = (part.get(name) for part in parts for name in names)
    numbers = [
        float(value) for value in found if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    # Python reads 1e400 as infinite.
    return [number for number in numbers if math.isfinite(number)]


def _check_finite(root: Schema, nodes: Mapping[str, Schema]) -> None:
    """Refuse a schema whose instances would have to hold themselves."""
    dependents: defaultdict[int, list[Schema]] = defaultdict(list)
    by_id = {id(node): node for node in nodes.values()}
    unread = list(by_id.values())
    while unread:
        node = unread.pop()
        for needed in _needed(root, node):
            dependents[id(needed)].append(node)
            # A reference may lead to where no schema is expected.
            if id(needed) not in by_id:
                by_id |= {id(found): found for _, found in walk(needed)}
                unread.append(needed)
    # Children come behind their parents, and so are known when they are asked for.
    waiting, finite = list(by_id.values()), set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) not in finite and _is_finite(root, node, finite):
            finite.add(id(node))
            waiting.extend(dependents[id(node)])
    if id(root) not in finite:
        path = next((at for at, node in nodes.items() if "$ref" in node and id(node) not in finite), "")
        raise RefusalError("no JSON value is valid: the schema requires itself within itself", path)


def _needed(root: Schema, node: Schema) -> Iterator[Schema]:
    target = target_of(root, node)
    if target is not None:
        yield target
    for group in ("allOf", "anyOf", "oneOf"):
        yield from (each for each in _list(node.get(group)) if isinstance(each, dict))
    yield from _required(node)


def _is_finite(root: Schema, node: Schema, finite: set[int]) -> bool:
    target = target_of(root, node)
    needed = [*([target] if target is not None else []), *_list(node.get("allOf")), *_required(node)]
    if not all(_known(each, finite) for each in needed):
        return False
    for group in ("anyOf", "oneOf"):
        choices = _list(node.get(group))
        if choices and not any(_known(each, finite) for each in choices):
            return False
    return True


def _known(schema: Json, finite: set[int]) -> bool:
    return id(schema) in finite if isinstance(schema, dict) else schema is not False


def _required(node: Schema) -> Iterable[Schema]:
    """Return the schemas of what each instance has to hold."""
    found: list[Json] = []
    if node.get("type") == "object":
        properties = _dict(node.get("properties"))
        others = node.get("additionalProperties")
        names = (name for name in _list(node.get("required")) if isinstance(name, str))
        found = [properties.get(name, others) for name in names]
    elif node.get("type") == "array" and isinstance(node.get("minItems"), int) and node["minItems"] > 0:
        first = _list(node.get("prefixItems")) or _list(node.get("items"))
        rest = node.get("additionalItems") if isinstance(node.get("items"), list) else node.get("items")
        found = [*first[: node["minItems"]], *([rest] if node["minItems"] > len(first) else [])]
    return [each for each in found if isinstance(each, dict)]


def target_of(root: Schema, node: Schema) -> Schema | None:
    """Return what a reference points to; None for none and for those that llguidance resolves by itself."""
    pointer = node.get("$ref")
    if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
        return None
    found: Json = root
    for part in unquote(pointer).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            return None
    return found if isinstance(found, dict) else None


def children(node: Schema) -> Iterator[tuple[str, Json]]:
    """Yield what is directly within a schema, with the path from it to there."""
    for name in _MAPS:
        yield from ((f"{name}.{key}", child) for key, child in _dict(node.get(name)).items())
    for name in _LISTS:
        yield from ((f"{name}[{i}]", child) for i, child in enumerate(_list(node.get(name))))
    for name in _SINGLE:
        if name in node:
            yield name, node[name]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _dict(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []
