"""Reads calls that are not JSON objects: a name and JSON arguments, or a name and tagged arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from splitserve.frontend.text.answers.calls import Calls
from splitserve.frontend.text.answers.formats import NamedCall, TaggedCall
from splitserve.frontend.text.answers.json_calls import json_arguments
from splitserve.frontend.text.answers.text_source import MAX_NAME_CHARS, Reading, TextSource

# Kimi numbers its calls in their names.
_NUMBER: Final = re.compile(r":\d+\Z")
_PYTHON_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
_encode = msgspec.json.Encoder().encode


def named_calls(source: TextSource, calls: Calls, shape: NamedCall) -> Reading[bool]:
    """Read one or more calls; the attempt that this is part of is accepted with the first.

    Raises:
        NotACallError: there is none here.
    """
    yield from _named_call(source, calls, shape)
    # Without a tag of its own, what follows a call may be anything.
    while shape.begin and (yield from source.attempt(_named_call(source, calls, shape))):
        pass
    return True


def _named_call(source: TextSource, calls: Calls, shape: NamedCall) -> Reading[bool]:
    yield from source.space()
    yield from source.expect(shape.begin)
    if shape.kind_end:
        yield from source.until((shape.kind_end,), max_chars=MAX_NAME_CHARS)
    name = yield from source.until(shape.name_ends, (shape.id_begin, "{"), MAX_NAME_CHARS)
    name = _NUMBER.sub("", name.strip().removeprefix(shape.name_prefix))
    calls.check(name, known_only=False)
    if shape.id_begin and (yield from source.skip(shape.id_begin)):
        yield from source.until(shape.name_ends, ("{",), MAX_NAME_CHARS)
    yield from source.space()
    yield from source.skip(shape.fence)
    yield from source.space()
    has_arguments = (yield from source.peek()) == "{"
    if not has_arguments:
        yield from source.expect(shape.end[0] if shape.end else "{")
    calls.start(name)
    source.commit()
    if has_arguments:
        yield from json_arguments(source, calls)
    else:
        calls.add_arguments("{}")
    for tag in shape.end:
        yield from source.space()
        yield from source.skip(tag, cut=True)
    return True


def tagged_calls(source: TextSource, calls: Calls, shape: TaggedCall, end: str) -> Reading[bool]:
    """Read one or more calls; the attempt that this is part of is accepted with the first.

    Args:
        source: before the first.
        calls: gets them.
        shape: of each.
        end: tag that ends them all.

    Raises:
        NotACallError: there is none here.
    """
    yield from _tagged_call(source, calls, shape, end)
    while shape.begin and (yield from source.attempt(_tagged_call(source, calls, shape, end))):
        pass
    return True


def _tagged_call(source: TextSource, calls: Calls, shape: TaggedCall, end: str) -> Reading[bool]:
    yield from source.space()
    yield from source.expect(shape.begin)
    name = (yield from source.until(shape.name_ends, (shape.key_begin, end), MAX_NAME_CHARS)).strip()
    calls.check(name, known_only=False)
    calls.start(name)
    source.commit()
    calls.add_arguments("{")
    separator = ""
    while (key := (yield from source.attempt(_argument_name(source, shape)))) is not None:
        calls.add_arguments(f"{separator}{_encode(key).decode()}: ")
        separator = ", "
        if not (yield from _argument(source, calls, shape, calls.types_of(name, key))):
            return True
    yield from source.space()
    # A call that is cut off stays open, like one that is written as JSON.
    if (yield from source.skip(shape.end, cut=True)) if shape.end else (yield from source.peek()):
        calls.add_arguments("}")
    return True


def _argument_name(source: TextSource, shape: TaggedCall) -> Reading[str]:
    yield from source.space()
    yield from source.expect(shape.key_begin)
    key = yield from source.until((shape.key_end,), max_chars=MAX_NAME_CHARS)
    if shape.value_begin:
        yield from source.space()
        yield from source.expect(shape.value_begin)
    return key.strip()


def _argument(source: TextSource, calls: Calls, shape: TaggedCall, types: Sequence[str]) -> Reading[bool]:
    """Read the value of an argument and write it as JSON; returns whether it is complete."""
    if tuple(types) != ("string",):
        value = yield from source.attempt(source.until((shape.value_end,)))
        if value is not None:
            calls.add_arguments(as_json(_without_line_feeds(value), types))
            return True
    # A text may be long: it is given out as it comes.
    calls.add_arguments('"')
    yield from source.skip("\n")
    tags = (f"\n{shape.value_end}", shape.value_end)

    def give(text: str) -> None:
        calls.add_arguments(_encode(text)[1:-1].decode())

    if not (tag := (yield from source.pass_on(tags, give, trims=False))):
        return False
    yield from source.skip(tag)
    calls.add_arguments('"')
    return True


def _without_line_feeds(text: str) -> str:
    return text.removeprefix("\n").removesuffix("\n")


def as_json(text: str, types: Sequence[str]) -> str:
    """Return a value that is written as plain text as JSON, by the types that its schema names."""
    value = text.strip()
    value = _PYTHON_WORDS.get(value, value)
    if "string" in types and not (value == "null" and "null" in types):
        return _encode(text).decode()
    try:
        msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _encode(text).decode()
    return value
