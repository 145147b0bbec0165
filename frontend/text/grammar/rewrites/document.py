"""The schema as a whole: its draft, what its references lead to, and how much work it may still cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from splitserve.frontend.text.grammar.json_schema import target_of
from splitserve.frontend.text.grammar.rewrites.terms import listing

Json = Any

# As llguidance and jsonschema read them; other words are the newest draft.
_DRAFTS: Final = {
    "http://json-schema.org/draft-03/schema": 3,
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
}
_NEWEST = 2020
# The first and the last draft of the keywords that not all drafts have.
_KNOWN: Final = {
    "const": (6, _NEWEST),
    "contains": (6, _NEWEST),
    "propertyNames": (6, _NEWEST),
    "if": (7, _NEWEST),
    "then": (7, _NEWEST),
    "else": (7, _NEWEST),
    "dependentRequired": (2019, _NEWEST),
    "dependentSchemas": (2019, _NEWEST),
    "minContains": (2019, _NEWEST),
    "maxContains": (2019, _NEWEST),
    "prefixItems": (2020, _NEWEST),
    # Left out of the newer drafts, but who writes it means it.
    "dependencies": (3, _NEWEST),
}
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_STEPS_PER_SCHEMA, _MIN_STEPS, _MAX_STEPS = 20, 20_000, 100_000


class Document:
    """One schema, and the steps that are left for it.

    Attributes:
        draft: number or year of the draft.
        has_fractions: some bound is no whole number.
    """

    def __init__(self, root: Mapping[str, Json], nodes: Iterable[Mapping[str, Json]]) -> None:
        """Args: nodes are the schemas within root, itself first."""
        found = list(nodes)
        named = root.get("$schema")
        self.draft = _DRAFTS.get(named.rstrip("#"), _NEWEST) if isinstance(named, str) else _NEWEST
        self.has_fractions = any(_is_fraction(node.get(name)) for node in found for name in _BOUNDS)
        self._root = root
        # References within it are resolved against its own name.
        self._has_parts = any(_is_named(node) for node in found[1:])
        self._num_steps = min(max(_MIN_STEPS, _STEPS_PER_SCHEMA * len(found)), _MAX_STEPS)

    def knows(self, keyword: str) -> bool:
        """Tell whether the draft has a keyword; those that it has not say nothing."""
        first, last = _KNOWN.get(keyword, (4, _NEWEST))
        return first <= self.draft <= last

    def target(self, node: Mapping[str, Json]) -> Json:
        """Return the schema that the reference of one leads to; None if that is not known."""
        return None if self._has_parts else target_of(self._root, node)

    @property
    def is_spent(self) -> bool:
        """Whether no step is left, so that nothing can be proved any more."""
        return self._num_steps < 0

    def spend(self, num_steps: int = 1) -> bool:
        """Take some steps; False if there are none left."""
        self._num_steps -= num_steps
        return self._num_steps >= 0


def names_of_patterns(node: Mapping[str, Json]) -> list[str]:
    """Return the patterns of patternProperties."""
    found = node.get("patternProperties")
    return list(found) if isinstance(found, dict) else []


def required_of(node: Mapping[str, Json]) -> list[str]:
    """Return the names that a schema requires."""
    return [each for each in listing(node.get("required")) if isinstance(each, str)]


def _is_named(node: Mapping[str, Json]) -> bool:
    return any(isinstance(node.get(key), str) and not re.match("#", node[key]) for key in ("$id", "id"))


def _is_fraction(value: Json) -> bool:
    return isinstance(value, float) and not value.is_integer()
