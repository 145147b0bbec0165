"""Request bytes to one typed struct: structure checked first, types strict, all field names known."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

import msgspec

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.http.allowed_values import allowed_values

MAX_DEPTH = 32
# Strings, objects and arrays of one body. Token ids are neither, so long prompts do not come near it.
MAX_TOKENS = 200_000
# Decoding up to this size stays well under a millisecond; larger bodies are decoded in a thread.
INLINE_BYTES = 64 * 1024

# One at a time: decoding holds the interpreter, so that several would take turns with the event loop.
_DECODING = ThreadPoolExecutor(1, thread_name_prefix="decode")

# Possessive quantifiers: no string can make the scan go back over itself. One set of first characters lets it
# pass over numbers five times as fast as two alternatives.
_TOKEN = re.compile(rb'["\[\]{}](?:(?<=")[^"\\]*+(?:\\.[^"\\]*+)*+("(?:[ \t\r\n]*+:)?+)?+)?+', re.DOTALL)
_PATH = re.compile(r"(?P<what>.*) - at `(?P<key>key in )?\$\.?(?P<path>[^`]*)`$", re.DOTALL)
_WRONG = re.compile(
    r"(?:Expected `[^`]*`[^`]*?|Invalid enum value (?P<value>.*?))(?P<got>, got `.*`)?$", re.DOTALL
)
_MISSING = re.compile(r"Object missing required field `(.+?)`")

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Everything up to an escape \ud800 to \udfff that is not followed by, or is not, the other half of its pair.
_LONE_SURROGATE = re.compile(
    rb"(?:[^\\]++|\\(?!u[dD][89a-fA-F]).|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)*+(\\u)", re.DOTALL
)

T = TypeVar("T", bound=msgspec.Struct)


class DecodedBody(NamedTuple, Generic[T]):
    """A decoded body and the names of all its top-level fields, known or not."""

    value: T
    field_names: frozenset[str]


class BodyDecoder(Generic[T]):
    """Decodes the bodies of one endpoint into its struct; made once, used for every request."""

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    async def decode(self, body: bytes) -> DecodedBody[T]:
        """Decode a body, in a thread if it is large.

        Raises:
            InvalidRequestError: code "invalid_json" for what is not one well-formed JSON text,
                "invalid_value" with the field's path as param for wrong types and ranges.
        """
        if len(body) <= INLINE_BYTES:
            return self.decode_now(body)
        return await asyncio.get_running_loop().run_in_executor(_DECODING, self.decode_now, body)

    def decode_now(self, body: bytes) -> DecodedBody[T]:
        """Decode a body on this thread. Raises as decode()."""
        check_utf8(body)
        names = scan_structure(body)
        try:
            return DecodedBody(self._decoder.decode(body), names)
        except msgspec.ValidationError as error:
            raise _field_error(self.kind, str(error)) from None
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise _malformed(f"The body is not valid JSON: {_syntax_fault(body, str(error))}") from None


def check_utf8(body: bytes) -> None:
    """Check the encoding of all of a body; the decoder looks at the strings of known fields only.

    Raises:
        InvalidRequestError: code "invalid_json".
    """
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise _malformed(f"The body is not valid UTF-8 (byte {error.start})") from None


def scan_structure(body: bytes) -> frozenset[str]:
    """Check nesting, number of values and duplicate keys without building anything.

    Returns:
        The keys of the outermost object.

    Raises:
        InvalidRequestError: code "invalid_json".
    """
    stack: list[set[bytes]] = []
    top: set[bytes] = set()
    for count, match in enumerate(_TOKEN.finditer(body)):
        if count >= MAX_TOKENS:
            raise _malformed(
                f"The body holds more than {MAX_TOKENS} strings, objects and arrays (byte {match.start()})"
            )
        char = body[match.start()]
        if char == 0x22:
            _check_string(body, match, stack)
        elif char in b"{[":
            stack.append(top if not stack else set())
            if len(stack) > MAX_DEPTH:
                raise _malformed(f"The body is nested deeper than {MAX_DEPTH} levels (byte {match.start()})")
        elif stack:
            stack.pop()
    return frozenset(_text(key) for key in top)


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


def _field_error(kind: type[msgspec.Struct], message: str) -> InvalidRequestError:
    match = _PATH.match(message)
    missing = _MISSING.match(message)
    if missing is not None:
        path = f"{match['path']}.{missing[1]}" if match is not None and match["path"] else missing[1]
        return InvalidRequestError(f"{path} is missing", path, "missing_required_parameter")
    if match is None:
        return InvalidRequestError(_plain(message))
    path, what = match["path"], _plain(match["what"])
    if not match["key"]:
        what = _with_range(kind, path, match["what"]) or what
    return InvalidRequestError(f"{path or 'body'}: {what}", path or None)


def _with_range(kind: type[msgspec.Struct], path: str, what: str) -> str | None:
    """Say all that the field may hold; msgspec names one bound, and no choice of several."""
    wrong = _WRONG.match(what)
    allowed = allowed_values(kind, path) if wrong is not None else None
    if wrong is None or allowed is None:
        return None
    got = f", got {wrong['value']}" if wrong["value"] else _plain(wrong["got"] or "")
    return f"expected {allowed}{got}"


def _syntax_fault(body: bytes, message: str) -> str:
    """Say what is wrong and at which byte; the decoder's words for some faults name neither."""
    if body.startswith(_BYTE_ORDER_MARK):
        return "it begins with a byte order mark (byte 0)"
    if "(byte " in message:
        return message.removeprefix("JSON is malformed: ")
    lone = _LONE_SURROGATE.match(body)
    if lone is not None:
        return f"half of a surrogate pair (byte {lone.start(1)})"
    return f"it ends too early (byte {len(body)})" if "truncated" in message else message


def _plain(message: str) -> str:
    message = message.replace("`", "")
    return message[:1].lower() + message[1:]


def _malformed(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, None, "invalid_json")
