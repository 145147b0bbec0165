"""Reads calls that are written as a list of Python calls: [f(a=1), g(b="x")]."""

from __future__ import annotations

import ast
import json
import warnings
from typing import Final, NamedTuple

from splitserve.frontend.text.answers.calls import Calls
from splitserve.frontend.text.answers.text_source import NotACallError, Reading, TextSource

_CLOSERS: Final = {"(": ")", "[": "]", "{": "}"}


class _Call(NamedTuple):
    name: str
    arguments: str


class PythonSpan:
    """Follows one list by its brackets and quotes.

    Attributes:
        done: whether the end has been found.
    """

    __slots__ = ("_escaped", "_open", "_quote", "done")

    def __init__(self) -> None:
        self.done = False
        self._open: list[str] = []
        self._quote = ""
        self._escaped = False

    def advance(self, text: str, pos: int) -> int:
        """Look at text from a place on; return where the list ends, or the text if it goes on."""
        while pos < len(text) and not self.done:
            self._take(text[pos])
            pos += 1
        return pos

    def _take(self, char: str) -> None:
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == self._quote:
                self._quote = ""
        elif char in "\"'":
            self._quote = char
        elif char in _CLOSERS:
            self._open.append(_CLOSERS[char])
        elif self._open and char == self._open[-1]:
            self._open.pop()
            self.done = not self._open


def python_calls(source: TextSource, calls: Calls, *, known_only: bool) -> Reading[bool]:
    """Read a list of calls, all at once: what a value means is known only where it ends.

    Raises:
        NotACallError: there is none here, or one of them is no call with keyword arguments.
    """
    if (yield from source.peek()) != "[":
        raise NotACallError
    pieces: list[str] = []
    yield from source.take_span(PythonSpan(), pieces.append)
    found = _read("".join(pieces))
    for call in found:
        calls.check(call.name, known_only=known_only)
    source.commit()
    for call in found:
        if not calls.is_full:
            calls.start(call.name)
            calls.add_arguments(call.arguments)
    return True


def _read(text: str) -> list[_Call]:
    """Read a list, which is never run; it has at most MAX_HELD characters, which Python's parser bears."""
    try:
        with warnings.catch_warnings():
            # Of escapes that Python does not know, such as those of regular expressions.
            warnings.simplefilter("ignore")
            body = ast.parse(text.strip(), mode="eval").body
        if not isinstance(body, ast.List) or not body.elts:
            raise NotACallError
        return [_read_call(node) for node in body.elts]
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise NotACallError from None


def _read_call(node: ast.expr) -> _Call:
    if not isinstance(node, ast.Call) or node.args:
        raise NotACallError
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise NotACallError
        arguments[keyword.arg] = ast.literal_eval(_with_words(keyword.value))
    written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    # An escape may stand for half of a surrogate pair, which no answer can hold.
    written.encode()
    return _Call(ast.unparse(node.func), written)


def _with_words(node: ast.expr) -> ast.expr:
    """Return a value in which JSON's words, which models mix in, are Python's."""
    words = {"true": True, "false": False, "null": None}
    for parent in ast.walk(ast.List([node], ast.Load())):
        for name, child in ast.iter_fields(parent):
            if isinstance(child, ast.Name) and child.id in words:
                setattr(parent, name, ast.Constant(words[child.id]))
            elif isinstance(child, list):
                child[:] = [
                    ast.Constant(words[each.id]) if isinstance(each, ast.Name) and each.id in words else each
                    for each in child
                ]
    return ast.Constant(words[node.id]) if isinstance(node, ast.Name) and node.id in words else node
