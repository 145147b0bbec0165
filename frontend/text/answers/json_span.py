"""Where does a JSON value end that arrives in pieces? Brackets and quotes tell, not its grammar."""

from __future__ import annotations

import re
from typing import Final

_CLOSERS: Final = {"{": "}", "[": "]"}
# All that may stand outside of strings, but for brackets and quotes.
_OUTSIDE: Final = re.compile(r"[\s0-9A-Za-z+\-.,:]*", re.ASCII)
_INSIDE: Final = re.compile(r'[^"\\]*')
_SCALAR: Final = re.compile(r"[^\s,\]}]*")


class JsonSpan:
    """Follows one value.

    A closing bracket that fits none and a character that cannot stand there end it, too: so a broken value
    does not swallow the tag behind it.

    Attributes:
        done: whether the end has been found.
    """

    __slots__ = ("_begun", "_escaped", "_in_string", "_open", "done")

    def __init__(self) -> None:
        self.done = False
        self._begun = False
        # The brackets that are to come, outermost first.
        self._open: list[str] = []
        self._in_string = False
        self._escaped = False

    def advance(self, text: str, pos: int) -> int:
        """Look at text from a place on; return where the value ends, or the text if it goes on."""
        while pos < len(text) and not self.done:
            if self._escaped:
                self._escaped = False
                pos += 1
            elif self._in_string:
                pos = self._inside(text, pos)
            elif self._open or text[pos] in '{["':
                pos = self._outside(text, pos)
            else:
                # A number, or a word such as null: only what follows tells that it has ended.
                pos = _end(_SCALAR, text, pos)
                self.done = pos < len(text)
            self._begun = True
        return pos

    def _inside(self, text: str, pos: int) -> int:
        pos = _end(_INSIDE, text, pos)
        if pos == len(text):
            return pos
        if text[pos] == "\\":
            self._escaped = True
        else:
            self._in_string = False
            self.done = not self._open
        return pos + 1

    def _outside(self, text: str, pos: int) -> int:
        if self._open:
            pos = _end(_OUTSIDE, text, pos)
            if pos == len(text):
                return pos
        char = text[pos]
        if char == '"':
            self._in_string = True
        elif char in _CLOSERS:
            self._open.append(_CLOSERS[char])
        elif self._open and char == self._open[-1]:
            self._open.pop()
            self.done = not self._open
        else:
            self.done = True
            return pos
        return pos + 1


def _end(pattern: re.Pattern[str], text: str, pos: int) -> int:
    match = pattern.match(text, pos)
    assert match is not None
    return match.end()
