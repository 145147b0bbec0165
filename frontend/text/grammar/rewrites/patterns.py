"""Patterns as llguidance reads them rightly, and whether some texts can match several of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from llguidance import LLMatcher

# A character, escaped or not, or what begins and ends a set.
_PARTS: Final = re.compile(r"\\.|\[\^|.", re.DOTALL)
_NUL: Final = r"\x00"
_OUTSIDE, _SET, _DENIED_SET = "", "[", "[^"
# Of the sets that those who read schemas do not agree on, what is surely in them, and what may be.
SURE: Final = {r"\d": "0-9", r"\w": "a-zA-Z0-9_", r"\s": r" \t\n\r\f\v"}
MAYBE: Final = {r"\d": r"\p{Nd}", r"\w": r"\p{L}\p{N}\p{M}_", r"\s": r"\s\x1c-\x1f\x{180e}\x{feff}"}
# What may not match these.
_OTHER: Final = {r"\D": "[^0-9]", r"\W": "[^a-zA-Z0-9_]", r"\S": r"[^ \t\n\r\f\v]"}
_EVERYTHING: Final = r"\x00-\x{10ffff}"


def without_nul(pattern: str) -> str:
    r"""Return a pattern whose sets of what is not listed do not hold the character of number 0.

    A set that holds all control characters, as any [^...] does, lets llguidance write a quote and a backslash
    in a JSON string even if these are not in the set. Without that character it is right.
    """
    if _DENIED_SET not in pattern:
        return pattern
    return "".join(
        rf"{part}\x00" if part == _DENIED_SET and not where else part for part, where in _parts(pattern)
    )


def is_no_text(patterns: Sequence[str], texts: Sequence[str] | None) -> bool:
    """Tell whether it is certain that no text matches all of some patterns.

    Args:
        patterns: to be matched, each anywhere in the text.
        texts: the only ones there may be; None for any.
    """
    widened = [_widened(pattern) for pattern in patterns]
    return _is_empty(json.dumps([widened, texts]))


@lru_cache(maxsize=1024)
def _is_empty(given: str) -> bool:
    patterns, texts = json.loads(given)
    schema: dict[str, Any] = {"type": "string", "allOf": [{"pattern": pattern} for pattern in patterns]}
    if texts is not None:
        schema["enum"] = texts
    error = LLMatcher.validate_grammar(json.dumps({"grammars": [{"json_schema": schema}]}))
    return error.startswith("Unsatisfiable schema")


def _widened(pattern: str) -> str:
    """Return a pattern that matches what another one does however it is read."""
    return "".join(_wide(part, where) for part, where in _parts(pattern))


def _wide(part: str, where: str) -> str:
    if where and part in _OTHER:
        return _EVERYTHING if where == _SET else ""
    if where:
        return (SURE if where == _DENIED_SET else MAYBE).get(part, part)
    if part == "$":
        # To some the line feed before the end is the end.
        return r"\n?$"
    if part in MAYBE:
        return f"[{MAYBE[part]}]"
    return _OTHER.get(part, part)


def _parts(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a pattern, each with the set that it is in, as that begins."""
    where = _OUTSIDE
    for found in _PARTS.finditer(pattern):
        part = found[0]
        if where and part == _DENIED_SET:
            # Within a set these are two characters.
            yield "[", where
            part = "^"
        if where and part == "]":
            where = _OUTSIDE
        yield part, where
        if not where and part in (_SET, _DENIED_SET):
            where = part
