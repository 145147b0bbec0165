"""Request bytes to one typed struct: structure checked first, types strict, unknown fields reported."""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.typed_json.faults import Fault, find_fault
from splitserve.frontend.typed_json.unknown import IsKnown, UnknownField, knows_nothing, unknown_fields

MAX_DEPTH = 32
# Most strings, objects and arrays in one body. Token ids are none of these, so long prompts stay far below.
MAX_TOKENS = 200_000
# Decoding up to this size stays well under a millisecond; larger bodies are decoded in a thread.
INLINE_BYTES = 64 * 1024

# One at a time: decoding holds the GIL, so several threads would compete with the event loop.
_DECODING = ThreadPoolExecutor(1, thread_name_prefix="decode")

# Possessive quantifiers: no string can make the scan backtrack. A single set of first characters skips
# numbers five times as fast as two alternatives.
_TOKEN = re.compile(rb'["\[\]{}](?:(?<=")[^"\\]*+(?:\\.[^"\\]*+)*+("(?:[ \t\r\n]*+:)?+)?+)?+', re.DOTALL)
# Python converts integers up to about this length; longer ones are not a valid value of any field.
_MAX_DIGITS = 4300

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Everything up to an escape \ud800 to \udfff that is not followed by, or is not, the other half of its pair.
_LONE_SURROGATE = re.compile(
    rb"(?:[^\\]++|\\(?!u[dD][89a-fA-F]).|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)*+(\\u)", re.DOTALL
)

T = TypeVar("T", bound=msgspec.Struct)


class DecodedBody(NamedTuple, Generic[T]):
    """A decoded body.

    Attributes:
        value: the typed value.
        fields: all fields of the body as received, by name.
        unknown: fields of the body, and of structs in it, that its type does not have; see unknown_fields().
    """

    value: T
    fields: dict[str, Any]
    unknown: list[UnknownField]


class BodyDecoder(Generic[T]):
    """Decodes the bodies of one endpoint into its struct; created once, used for every request."""

    def __init__(self, kind: type[T], is_known: IsKnown = knows_nothing) -> None:
        """Decode into `kind`; fields for which `is_known` returns True are not reported as unknown."""
        self._kind = kind
        self._is_known = is_known

    async def decode(self, body: bytes) -> DecodedBody[T]:
        """Decode a body, in a thread if it is large.

        Raises:
            InvalidRequestError: code "invalid_json" for a body that is not one well-formed JSON text,
                "invalid_value" with the field's path as param for wrong types and ranges.
        """
        if len(body) <= INLINE_BYTES:
            return self.decode_now(body)
        return await asyncio.get_running_loop().run_in_executor(_DECODING, self.decode_now, body)

    def decode_now(self, body: bytes) -> DecodedBody[T]:
        """Decode a body on this thread. Raises as decode()."""
        check_utf8(body)
        scan_structure(body)
        fields = self._read(body)
        try:
            value = msgspec.convert(fields, self._kind)
        except msgspec.ValidationError as error:
            raise (find_fault(self._kind, fields) or Fault("", str(error))).error("body") from None
        return DecodedBody(value, fields, unknown_fields(self._kind, fields, self._is_known))

    def _read(self, body: bytes) -> Any:
        try:
            return msgspec.json.decode(body)
        except msgspec.ValidationError:
            return self._read_wide(body)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise _not_json(_syntax_fault(body, str(error))) from None

    def _read_wide(self, body: bytes) -> Any:
        """Read a body with numbers too large for any type; in unknown fields they do no harm."""
        if (lone := _lone_surrogate(body)) is not None:
            raise _not_json(lone)
        try:
            fields = json.loads(body.decode(), parse_int=_wide_integer, parse_constant=_refuse_constant)
        except (RecursionError, ValueError) as error:
            raise _not_json(_syntax_fault(body, str(error))) from None
        if (fault := find_fault(self._kind, fields)) is not None:
            raise fault.error("body")
        return fields


def _wide_integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else float(digits)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def check_utf8(body: bytes) -> None:
    """Check the encoding of a body; the decoder itself checks only the strings.

    Raises:
        InvalidRequestError: code "invalid_json".
    """
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise _malformed(f"The body is not valid UTF-8 (byte {error.start})") from None


def scan_structure(body: bytes) -> None:
    """Check nesting, number of values and duplicate keys without building anything.

    Raises:
        InvalidRequestError: code "invalid_json".
    """
    stack: list[set[bytes]] = []
    for count, match in enumerate(_TOKEN.finditer(body)):
        if count >= MAX_TOKENS:
            raise _malformed(
                f"The body holds more than {MAX_TOKENS} strings, objects and arrays (byte {match.start()})"
            )
        char = body[match.start()]
        if char == 0x22:
            _check_string(body, match, stack)
        elif char in b"{[":
            stack.append(set())
            if len(stack) > MAX_DEPTH:
                raise _malformed(f"The body is nested deeper than {MAX_DEPTH} levels (byte {match.start()})")
        elif stack:
            stack.pop()


def _check_string(body: bytes, match: re.Match[bytes], stack: list[set[bytes]]) -> None:
    tail = match.group(1)
    if tail is None:
        raise _malformed(
            f"The body is not valid JSON: the string that begins at byte {match.start()} does not end"
        )
    if len(tail) == 1 or not stack:
        return
    key = body[match.start() + 1 : match.end() - len(tail)]
    if b"\\" in key:
        key = _text(key).encode("utf-8", "surrogatepass")
    if key in stack[-1]:
        raise _malformed(
            f"The body holds the key {_text(key)[:64]!r} twice in one object (byte {match.start()})"
        )
    stack[-1].add(key)


def _text(key: bytes) -> str:
    try:
        return msgspec.json.decode(b'"' + key + b'"', type=str)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
        return key.decode("utf-8", "replace")


def _syntax_fault(body: bytes, message: str) -> str:
    """Return what is wrong and at which byte; some of the decoder's messages name neither."""
    if body.startswith(_BYTE_ORDER_MARK):
        return "it begins with a byte order mark (byte 0)"
    if "(byte " in message:
        return message.removeprefix("JSON is malformed: ")
    if (lone := _lone_surrogate(body)) is not None:
        return lone
    return f"it ends too early (byte {len(body)})" if "truncated" in message else message


def _lone_surrogate(body: bytes) -> str | None:
    match = _LONE_SURROGATE.match(body)
    return None if match is None else f"half of a surrogate pair (byte {match.start(1)})"


def _not_json(fault: str) -> InvalidRequestError:
    return _malformed(f"The body is not valid JSON: {fault}")


def _malformed(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, None, "invalid_json")
