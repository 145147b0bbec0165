"""Reads calls that are JSON objects: {"name": ..., "arguments": {...}}, alone, in a row or in a list."""

from __future__ import annotations

from typing import Final

import msgspec

from splitserve.frontend.text.answers.calls import Calls
from splitserve.frontend.text.answers.json_span import JsonSpan
from splitserve.frontend.text.answers.text_source import NotACallError, Reading, TextSource

_NAME_KEY: Final = "name"
_ARGUMENTS_KEYS: Final = ("arguments", "parameters")
# What else an object may hold that is a call although nothing around it says so.
_OTHER_KEYS: Final = ("type", "id")


def json_calls(source: TextSource, calls: Calls, *, known_only: bool) -> Reading[bool]:
    """Read one or more calls; the attempt that this is part of is accepted with the first.

    Args:
        source: at the first bracket.
        calls: gets them.
        known_only: only an object that looks like a call of a tool of the request is one.

    Raises:
        NotACallError: there is none here.
    """
    is_list = yield from source.skip("[")
    yield from source.space()
    yield from _call(source, calls, known_only=known_only)
    while (yield from source.attempt(_next_call(source, calls, known_only=known_only))):
        pass
    if is_list:
        yield from source.attempt(_bracket(source))
    return True


def _next_call(source: TextSource, calls: Calls, *, known_only: bool) -> Reading[bool]:
    yield from source.space()
    if not (yield from source.skip(",")):
        yield from source.skip(";")
    yield from source.space()
    yield from _call(source, calls, known_only=known_only)
    return True


def _bracket(source: TextSource) -> Reading[bool]:
    yield from source.space()
    yield from source.expect("]")
    return True


def _call(source: TextSource, calls: Calls, *, known_only: bool) -> Reading[None]:
    yield from source.expect("{")
    name, held = "", "{}"
    while True:
        key = yield from _key(source)
        if key in _ARGUMENTS_KEYS and name:
            break
        if key == _NAME_KEY:
            yield from source.space()
            name = decode_string((yield from source.string()))
            calls.check(name, known_only=known_only)
        elif key in _ARGUMENTS_KEYS:
            held = yield from _value(source)
        elif known_only and key not in _OTHER_KEYS:
            raise NotACallError
        else:
            yield from _value(source)
        yield from source.space()
        if (yield from source.skip("}")):
            calls.check(name, known_only=known_only)
            calls.start(name)
            calls.add_arguments(_as_text(held))
            source.commit()
            return
        yield from source.expect(",")
    calls.start(name)
    source.commit()
    yield from json_arguments(source, calls)
    yield from source.attempt(_rest(source))


def json_arguments(source: TextSource, calls: Calls) -> Reading[None]:
    """Read the arguments of a call that has begun: an object piece by piece, anything else whole."""
    yield from source.space()
    if (yield from source.peek()) not in ("{", "["):
        value = yield from source.attempt(_value(source))
        if value is not None:
            calls.add_arguments(_as_text(value))
            return
    yield from source.take_span(JsonSpan(), calls.add_arguments)


def decode_string(written: str) -> str:
    """Return what a JSON string says.

    Raises:
        NotACallError: it is none.
    """
    try:
        return msgspec.json.decode(written, type=str)
    except (msgspec.DecodeError, UnicodeError):
        raise NotACallError from None


def _as_text(value: str) -> str:
    """Return arguments as JSON text: some models write that text as a string, and null for nothing."""
    if value == "null":
        return "{}"
    try:
        return decode_string(value) if value.startswith('"') else value
    except NotACallError:
        return value


def _key(source: TextSource) -> Reading[str]:
    """Read a key and its colon."""
    yield from source.space()
    key = decode_string((yield from source.string()))
    yield from source.space()
    yield from source.expect(":")
    return key


def _value(source: TextSource) -> Reading[str]:
    """Read a value as it is written."""
    yield from source.space()
    pieces: list[str] = []
    yield from source.take_span(JsonSpan(), pieces.append)
    if not pieces:
        raise NotACallError
    return "".join(pieces)


def _rest(source: TextSource) -> Reading[bool]:
    """Read what follows the arguments in the object of a call."""
    while True:
        yield from source.space()
        if (yield from source.skip("}")):
            return True
        yield from source.expect(",")
        yield from _key(source)
        yield from _value(source)
