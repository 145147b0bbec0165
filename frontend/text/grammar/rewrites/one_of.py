"""`oneOf` as `anyOf`: of its options if they exclude each other, of what only one of them allows if not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from splitserve.frontend.text.grammar.refusal import RefusalError
from splitserve.frontend.text.grammar.rewrites.complement import complement
from splitserve.frontend.text.grammar.rewrites.document import Document
from splitserve.frontend.text.grammar.rewrites.impossible import is_impossible
from splitserve.frontend.text.grammar.rewrites.terms import Schema, all_of, any_of

Json = Any

# What llguidance makes of one option: the product of what is said of each other one.
_MAX_OPTIONS = 8


def without_one_of(doc: Document, node: Mapping[str, Json], known: Sequence[Json]) -> Schema:
    """Return what the `oneOf` of a schema says, as `anyOf`.

    Args:
        doc: that the schema is from.
        node: the schema.
        known: schemas that hold beside it.

    Raises:
        RefusalError: two options may be valid at once, and what only one allows cannot be said.
    """
    beside = [*known, {key: value for key, value in node.items() if key != "oneOf"}]
    options = [each for each in node["oneOf"] if not is_impossible(doc, [*beside, each])]
    return any_of([_alone(doc, options, i, beside) for i in range(len(options))])


def _alone(doc: Document, options: Sequence[Json], i: int, beside: Sequence[Json]) -> Schema:
    """Return what one option allows and no other one does."""
    known = [*beside, options[i]]
    others = (j for j in range(len(options)) if j != i)
    overlapping = [j for j in others if not is_impossible(doc, [*known, options[j]])]
    parts: list[Schema] = [options[i]]
    for j in overlapping:
        found = complement(doc, options[j], known, max(1, int(_MAX_OPTIONS ** (1 / len(overlapping)))))
        if found.lost:
            raise RefusalError(f"oneOf: options {min(i, j)} and {max(i, j)} may both be valid")
        parts.append(found.schema)
    return all_of(parts)
