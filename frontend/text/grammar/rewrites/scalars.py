"""Texts, numbers and lengths that a schema does not allow, each with whether that is all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from splitserve.frontend.text.grammar.rewrites.document import Document
from splitserve.frontend.text.grammar.rewrites.patterns import MAYBE, SURE
from splitserve.frontend.text.grammar.rewrites.terms import Schema, any_of

Json = Any
Said = tuple[Schema, bool]

_MAX_TEXT = 1000
_ANY: Final = "(?s:.)"
_LENGTHS: Final = {"string": "Length", "array": "Items"}
# A character, or a set of them without the operators that they have in Rust.
_ONE: Final = r"(?:\[\^?(?:(?!&&|--|~~)(?:[^\\\[\]^]|\\[^a-zA-Z0-9]|\\[dwstnr]))+\]|[a-zA-Z0-9_ ])"
_FORMS: Final = {
    # Not $ but the line feed before it is the end to some.
    re.compile(rf"({_ONE})"): r"^[{other}]*$",
    re.compile(rf"\^({_ONE})"): r"^(?:$|[{other}])",
    re.compile(rf"({_ONE})\$"): r"(?:^|[{ended}])$",
    re.compile(rf"\^({_ONE})\*\$"): r"[{ended}]",
    re.compile(rf"\^({_ONE})\+\$"): r"^$|[{ended}]",
}
# All of the text, in letters that mean themselves.
_LITERAL: Final = re.compile(r"\^([a-zA-Z0-9 _-]*)\$")
_MAX_LENGTH: Final = 100


def without_bounds(doc: Document, schema: Mapping[str, Json], type_: str) -> Iterator[Said]:
    """Yield what bounds, lengths and patterns of a schema do not allow.

    Args:
        doc: that the schema is from.
        schema: what is denied.
        type_: number, string or array.
    """
    if type_ == "number":
        yield from _beyond(doc, schema)
        return
    least, most = (schema.get(f"{end}{_LENGTHS[type_]}") for end in ("min", "max"))
    if isinstance(least, int) and least > 0:
        yield {"type": type_, f"max{_LENGTHS[type_]}": least - 1}, True
    if isinstance(most, int):
        yield {"type": type_, f"min{_LENGTHS[type_]}": most + 1}, True
    if "pattern" in schema:
        yield _other_pattern(schema["pattern"])
    if "format" in schema:
        yield False, False


def other_texts(texts: Sequence[str]) -> Said:
    """Return what allows all texts but some."""
    if sum(map(len, texts)) > _MAX_TEXT or max(map(len, texts)) > _MAX_LENGTH:
        return False, False
    return {"type": "string", "pattern": f"^{_other_than(sorted(set(texts)))}$"}, True


def other_numbers(numbers: Iterable[float], *, whole: bool) -> Said:
    """Return what allows numbers but some.

    Args:
        numbers: that are not allowed.
        whole: stay 1 away from them: an exclusive bound is not held by llguidance if another one is near.
    """
    points = sorted(set(numbers))
    is_whole = all(float(point).is_integer() for point in points)
    if not is_whole or any(abs(point) >= 2**53 for point in points):
        return False, False
    ends = [None, *map(int, points), None]
    options = [
        {"type": "number", **_above(low, whole=whole), **_below(high, whole=whole)}
        for low, high in pairwise(ends)
        if low is None or high is None or not whole or high - low > 1
    ]
    return any_of(options), not whole


def _beyond(doc: Document, schema: Mapping[str, Json]) -> Iterator[Said]:
    for name, exclusive, edge, other in (
        ("minimum", "exclusiveMinimum", _below, "maximum"),
        ("maximum", "exclusiveMaximum", _above, "minimum"),
    ):
        bound, flag = schema.get(name), schema.get(exclusive)
        if doc.draft >= 6 and type(flag) in (int, float):
            yield {"type": "number", other: flag}, True
        elif doc.draft >= 6 and flag is not None:
            yield False, False
        if type(bound) not in (int, float) or (doc.draft < 6 and not isinstance(flag, bool | None)):
            continue
        if doc.draft < 6 and flag is True:
            yield {"type": "number", other: bound}, True
        else:
            yield {"type": "number", **edge(bound, whole=doc.has_fractions)}, not doc.has_fractions


def _above(bound: float | None, *, whole: bool) -> dict[str, float]:
    if bound is None:
        return {}
    return {"minimum": bound + 1} if whole else {"exclusiveMinimum": bound}


def _below(bound: float | None, *, whole: bool) -> dict[str, float]:
    if bound is None:
        return {}
    return {"maximum": bound - 1} if whole else {"exclusiveMaximum": bound}


def _other_pattern(pattern: Json) -> Said:
    """Return what allows texts that a pattern does not match."""
    literal = _LITERAL.fullmatch(pattern) if isinstance(pattern, str) else None
    if literal is not None:
        # To some the line feed before the end is the end.
        return other_texts([literal[1], f"{literal[1]}\n"])
    for form, written in _FORMS.items() if isinstance(pattern, str) else ():
        found = form.fullmatch(pattern)
        if found is not None:
            other = _others(found[1])
            if "{ended}" in written and not other.startswith("^"):
                # Nothing is left of what only a line feed at the end would tell apart.
                break
            said = written.replace("{other}", other).replace("{ended}", f"{other}\\n")
            return {"type": "string", "pattern": said}, True
    return False, False


def _others(characters: str) -> str:
    """Return the inside of a set of the characters that are not in one."""
    inside = characters[1:-1] if characters.startswith("[") else characters
    is_denied = inside.startswith("^")
    known = SURE if is_denied else MAYBE
    other = re.sub(r"\\[dws]", lambda found: known[found[0]], inside.removeprefix("^"))
    return other if is_denied else f"^{other}"


def _other_than(texts: Sequence[str]) -> str:
    """Return a pattern of what is none of some texts; these are sorted, without repetition."""
    firsts = sorted({text[0] for text in texts if text})
    options = [] if "" in texts else [""]
    escaped = {each: each if re.match("[a-zA-Z0-9]", each) else f"\\x{{{ord(each):x}}}" for each in firsts}
    options.append(f"[^{''.join(escaped.values())}]{_ANY}*" if firsts else f"{_ANY}+")
    options += [
        f"{escaped[first]}{_other_than([text[1:] for text in texts if text[:1] == first])}"
        for first in firsts
    ]
    return f"(?:{'|'.join(options)})"
