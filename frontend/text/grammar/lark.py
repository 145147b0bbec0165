"""Texts, regexes and special tokens as Lark writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

# Of text that nothing constrains; a special token is no text.
ANY_TEXT = "/(?s:.*)/"


class LarkWriter:
    """Writes texts with special tokens of one tokenizer: by id, as Lark cannot read all their names.

    Attributes:
        tokens: the special ones, text to id.
    """

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        self.tokens = special_tokens
        longest_first = sorted((text for text in special_tokens if text), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def parts(self, text: str) -> list[str | int]:
        """Return a text as texts and the ids of special tokens."""
        found: list[str | int] = []
        begin = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            if match.start() > begin:
                found.append(text[begin : match.start()])
            found.append(self.tokens[match[0]])
            begin = match.end()
        return [*found, text[begin:]] if begin < len(text) else found

    def length(self, token_id: int) -> int:
        """Return how many characters a special token's text has."""
        return next(len(text) for text, each in self.tokens.items() if each == token_id)

    def text(self, text: str) -> str:
        """Return a text as a Lark expression."""
        return " ".join(literal(part) for part in self.parts(text)) or '""'

    def until(self, rule: str, end: str) -> tuple[str, str]:
        """Return a rule for any text up to and with `end`, and the expression that uses it."""
        parts = self.parts(end)
        if parts and isinstance(parts[0], int):
            rest = " ".join(literal(part) for part in parts)
            return f"{rule}: {ANY_TEXT}\n", f"{rule} {rest}"
        first, rest = parts[0], " ".join(literal(part) for part in parts[1:])
        return f"{rule}[suffix={literal(first)}]: {ANY_TEXT}\n", f"{rule} {rest}".rstrip()


def literal(part: str | int) -> str:
    """Return a text, or the token of an id."""
    return f"<[{part}]>" if isinstance(part, int) else json.dumps(part, ensure_ascii=False)


def regex(pattern: str) -> str:
    """Return a regex between slashes, its own ones escaped."""
    escaped = re.sub(r"\\.|/|\n", _escape, pattern, flags=re.DOTALL)
    return f"/{escaped}/"


def _escape(match: re.Match[str]) -> str:
    found = match[0]
    return {"/": "\\/", "\n": "\\n", "\\\n": "\\n"}.get(found, found)
