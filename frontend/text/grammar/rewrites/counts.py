"""`minProperties` and `maxProperties` where properties are optional: as a choice of those that are there.

llguidance counts properties of any name, but not which of the optional ones that it knows are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Any, Final

from splitserve.frontend.text.grammar.refusal import RefusalError
from splitserve.frontend.text.grammar.rewrites.document import Document, names_of_patterns, required_of
from splitserve.frontend.text.grammar.rewrites.terms import TYPES, Schema, any_of, mapping

Json = Any

_MAX_CHOICES: Final = 64


def counted(doc: Document, node: Mapping[str, Json], known: Sequence[Json]) -> Schema:
    """Return which optional properties may be there together; true if llguidance needs no word of it.

    Raises:
        RefusalError: names would have to differ from each other.
    """
    required = required_of(node)
    optional = [name for name in mapping(node.get("properties")) if name not in required]
    least, most = (_beside(node.get(name), len(set(required))) for name in ("minProperties", "maxProperties"))
    least, is_closed = least or 0, node.get("additionalProperties") is False and not names_of_patterns(node)
    if not is_closed and least > 1 + len(optional):
        raise RefusalError("minProperties: that names which are not listed differ cannot be said")
    is_simple = is_closed and least <= 1 and most in (None, 1)
    if not optional or is_simple or (not least and most is None):
        return True
    others = [] if node.get("type") == "object" else [{"type": [each for each in TYPES if each != "object"]}]
    return any_of([*_choices(optional, least, most, is_closed=is_closed), *others])


def _choices(
    optional: Sequence[str], least: int, most: int | None, *, is_closed: bool
) -> list[Mapping[str, Json]]:
    """Return what may be there together; one name that is not listed may make up for one."""
    fewest = least if is_closed else max(least - 1, 0)
    sizes = range(fewest, least) if most is None else range(fewest, 1 + min(most, len(optional)))
    num_first = comb(len(optional), least) if most is None else 0
    if num_first + sum(comb(len(optional), size) for size in sizes) > _MAX_CHOICES:
        raise RefusalError(f"minProperties and maxProperties: more than {_MAX_CHOICES} choices of properties")
    found = [_choice(optional, names, optional) for size in sizes for names in combinations(optional, size)]
    if most is None:
        # So many are the first ones that are there; of those behind them nothing is said.
        firsts = combinations(optional, least)
        found += [_choice(optional, names, optional[: optional.index(names[-1])]) for names in firsts]
    return found


def _beside(count: Json, num_required: int) -> int | None:
    """Return how many there have to be, or may be, beside those required."""
    return max(count - num_required, 0) if isinstance(count, int) else None


def _choice(optional: Sequence[str], there: Sequence[str], told: Sequence[str]) -> Mapping[str, Json]:
    """Return a schema with some properties there and the others among those told of not."""
    absent = {name: False for name in told if name not in there}
    return {"type": "object", "required": list(there), **({"properties": absent} if absent else {})}
