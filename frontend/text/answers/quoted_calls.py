"""Reads calls whose arguments look like JSON without quotes: call:f{a:1,b:<escape>x<escape>}.

A tag stands on both sides of each text, and keys have nothing around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from splitserve.frontend.text.answers.calls import Calls
from splitserve.frontend.text.answers.formats import QuotedCall
from splitserve.frontend.text.answers.shaped_calls import as_json
from splitserve.frontend.text.answers.text_source import MAX_NAME_CHARS, NotACallError, Reading, TextSource

# Of objects and lists within each other; what is deeper ends the arguments.
MAX_DEPTH: Final = 32
_CLOSING: Final = {"{": "}", "[": "]"}
_BRACKETS: Final = frozenset("{}[],")
_encode = msgspec.json.Encoder().encode


def quoted_call(source: TextSource, calls: Calls, shape: QuotedCall) -> Reading[bool]:
    """Read one call; the attempt that this is part of is accepted with its name.

    Raises:
        NotACallError: there is none here.
    """
    yield from source.expect(shape.name_prefix)
    name = (yield from source.until(("{",), ("{",), MAX_NAME_CHARS)).strip()
    calls.check(name, known_only=False)
    calls.start(name)
    source.commit()
    yield from _Arguments(source, calls, shape.quote, name).read()
    return True


class _Arguments:
    """Writes the arguments of one call as JSON while they are read; what is broken or cut off stays open."""

    def __init__(self, source: TextSource, calls: Calls, quote: str, name: str) -> None:
        self._source = source
        self._calls = calls
        self._quote = quote
        self._name = name

    def read(self) -> Reading[bool]:
        """Read an object, at whose bracket the source is; returns whether it is complete."""
        return (yield from self._group("{", 0))

    def _group(self, opening: str, depth: int) -> Reading[bool]:
        """Read an object or a list, at whose bracket the source is; returns whether it is complete."""
        source, give, separator = self._source, self._calls.add_arguments, ""
        yield from source.skip(opening)
        give(opening)
        while True:
            yield from source.space()
            if (yield from source.skip(_CLOSING[opening])):
                give(_CLOSING[opening])
                return True
            types: Sequence[str] = ()
            if opening == "{":
                key = yield from source.attempt(self._key())
                if key is None:
                    return False
                give(f"{separator}{_encode(key).decode()}: ")
                types = () if depth else self._calls.types_of(self._name, key)
            elif (yield from source.peek()):
                give(separator)
            else:
                return False
            separator = ", "
            if not (yield from self._value(depth, types)):
                return False
            yield from source.space()
            yield from source.skip(",")

    def _key(self) -> Reading[str]:
        source = self._source
        if (yield from source.skip(self._quote)):
            key = yield from source.until((self._quote,), max_chars=MAX_NAME_CHARS)
            yield from source.expect(":")
            return key
        key = (yield from source.until((":",), max_chars=MAX_NAME_CHARS)).strip()
        if not key or not _BRACKETS.isdisjoint(key):
            raise NotACallError
        return key

    def _value(self, depth: int, types: Sequence[str]) -> Reading[bool]:
        source, give = self._source, self._calls.add_arguments
        yield from source.space()
        if (yield from source.skip(self._quote)):
            return (yield from self._text())
        bracket = yield from source.peek()
        if bracket in _CLOSING:
            if depth == MAX_DEPTH:
                return False
            return (yield from self._group(bracket, depth + 1))
        ends = (",", "}", "]")
        written = yield from source.attempt(source.until(ends, ends))
        if not written:
            return False
        give(as_json(written, types))
        return True

    def _text(self) -> Reading[bool]:
        """Read a text, which may be long: it is given out as it comes."""
        give = self._calls.add_arguments
        give('"')
        tag = yield from self._source.pass_on(
            (self._quote,), lambda text: give(_encode(text)[1:-1].decode()), trims=False
        )
        if not tag:
            return False
        yield from self._source.skip(tag)
        give('"')
        return True
