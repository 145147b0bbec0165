"""Edits of decoded values, so that what comes out is well-formed and wrong in one or two places."""

from __future__ import annotations

import struct
from random import Random

from tests.fuzz.mutation.numbers import FLOATS, INTEGERS, TEXTS, pick, some_scalar

# How often an edit goes on into a container instead of changing the container itself.
_DESCENT = 0.85


def mutate_value(rng: Random, value: object, donor: object = None) -> object:
    """Return the value with one place changed; the donor is another valid value to copy from."""
    if isinstance(value, (list, tuple)):
        return _in_list(rng, list(value), donor)
    if isinstance(value, dict):
        return _in_dict(rng, dict(value), donor)
    return _scalar(rng, value, donor)


def _in_list(rng: Random, items: list[object], donor: object) -> object:
    if items and rng.random() < _DESCENT:
        place = int(rng.random() * len(items))
        items[place] = mutate_value(rng, items[place], donor)
        return items
    return _list(rng, items, donor)


def _list(rng: Random, items: list[object], donor: object) -> object:
    place = int(rng.random() * len(items)) if items else 0
    kind = int(rng.random() * 7)
    if kind == 0 and items:
        del items[place]
    elif kind == 1:
        items.insert(place, some_scalar(rng))
    elif kind == 2 and items:
        items.insert(place, items[-1 - place])
    elif kind == 3 and items:
        items[place:place] = [items[place]] * int(rng.random() ** 4 * 400)
    elif kind == 4:
        return items[:place]
    elif kind == 5:
        items.append(_part(rng, donor))
    else:
        return _replacement(rng, items, donor)
    return items


def _in_dict(rng: Random, items: dict[object, object], donor: object) -> object:
    keys = list(items)
    if keys and rng.random() < _DESCENT:
        key = keys[int(rng.random() * len(keys))]
        items[key] = mutate_value(rng, items[key], donor)
        return items
    kind = int(rng.random() * 5)
    if kind == 0 and keys:
        del items[keys[int(rng.random() * len(keys))]]
    elif kind == 1:
        items[str(pick(rng, TEXTS))] = some_scalar(rng)
    elif kind == 2 and keys:
        items[keys[0]] = items[keys[-1]]
    elif kind == 3 and isinstance(donor, dict) and donor:
        key = list(donor)[int(rng.random() * len(donor))]
        items[key] = donor[key]
    else:
        return _replacement(rng, items, donor)
    return items


def _scalar(rng: Random, value: object, donor: object) -> object:
    if rng.random() < 0.25:
        return _replacement(rng, value, donor)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return pick(rng, INTEGERS) if rng.random() < 0.7 else value + int(rng.random() * 5) - 2
    if isinstance(value, float):
        return pick(rng, FLOATS) if rng.random() < 0.7 else value * (rng.random() * 4 - 2)
    if isinstance(value, bytes):
        return mutate_column(rng, value)
    if isinstance(value, str):
        return _text(rng, value)
    return some_scalar(rng)


def _replacement(rng: Random, value: object, donor: object) -> object:
    kind = int(rng.random() * 5)
    if kind == 0:
        return _part(rng, donor)
    if kind == 1:
        return [value]
    if kind == 2:
        return {str(pick(rng, TEXTS)): value} if rng.random() < 0.5 else []
    if kind == 3 and isinstance(value, (int, float)):
        return str(value)
    return some_scalar(rng)


def _part(rng: Random, value: object) -> object:
    """Some part of a value, at any depth."""
    while isinstance(value, (list, tuple, dict)) and len(value) and rng.random() < 0.8:
        items = list(value.values()) if isinstance(value, dict) else value
        value = items[int(rng.random() * len(items))]
    return value


def _text(rng: Random, text: str) -> str:
    place = int(rng.random() * (len(text) + 1))
    kind = int(rng.random() * 5)
    if kind == 0:
        return str(pick(rng, TEXTS))
    if kind == 1:
        return text[:place] + str(pick(rng, TEXTS)) + text[place:]
    if kind == 2:
        return text[:place]
    if kind == 3:
        return text[:place] + chr(int(rng.random() ** 3 * 0xD7FF)) + text[place + 1 :]
    return text * (2 + int(rng.random() ** 4 * 60)) if len(text) < 200 else text[place:]


def mutate_column(rng: Random, column: bytes) -> bytes:
    """Change packed numbers: one of them, how many there are, or the length in bytes."""
    kind = int(rng.random() * 6)
    size = 8 if len(column) % 8 == 0 and rng.random() < 0.4 else 4
    count = len(column) // size
    place = size * int(rng.random() * (count or 1))
    if kind <= 1 and count:
        number = int(INTEGERS[int(rng.random() * len(INTEGERS))]) & (2 ** (8 * size) - 1)
        return column[:place] + number.to_bytes(size, "little") + column[place + size :]
    if kind == 2:
        return column[:place]
    if kind == 3:
        return column + column[place : place + size] * (1 + int(rng.random() ** 4 * 300))
    if kind == 4:
        return column[: int(rng.random() * (len(column) + 1))]
    return column[:place] + struct.pack("<f", rng.random() * 100 - 50) + column[place + 4 :]
