"""The lines of a batch file: read, checked before anything is sent, and found again by their offsets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import msgspec

from splitserve.engine_core.errors import ConfigError

MAX_LINE_BYTES = 2**26
MAX_ID_CHARS = 512
_PATH = re.compile(r"/v1/[a-z][a-z0-9_/-]{0,100}")


class Request(msgspec.Struct, frozen=True):
    """One line: a POST request, and the name of its answer."""

    custom_id: str
    url: str
    body: dict[str, msgspec.Raw]
    method: Literal["POST"] = "POST"


class Place(NamedTuple):
    """Where a request is in the file."""

    custom_id: str
    offset: int


class BatchFile:
    """A file of requests, of which only names and offsets are kept in memory.

    Args:
        path: of the file; every line is read and checked.

    Raises:
        ConfigError: it cannot be read, or a line is wrong; names the line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _open(path)
        try:
            self.places = list(self._read_places())
            if not self.places:
                raise ConfigError(f"{path} has no requests")
        except ConfigError:
            self._file.close()
            raise

    def read(self, place: Place) -> Request:
        """Return a request."""
        self._file.seek(place.offset)
        return _decoder.decode(self._file.readline())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read_places(self) -> Iterator[Place]:
        seen: dict[str, int] = {}
        offset = 0
        for number, line in enumerate(iter(lambda: self._file.readline(MAX_LINE_BYTES + 1), b""), 1):
            where = f"line {number} of {self.path}"
            if len(line) > MAX_LINE_BYTES:
                raise ConfigError(f"{where} is longer than 64 MiB")
            if line.strip():
                custom_id = _checked(line, where).custom_id
                if custom_id in seen:
                    raise ConfigError(f"{where} has the custom_id of line {seen[custom_id]}: {custom_id!r}")
                seen[custom_id] = number
                yield Place(custom_id, offset)
            offset += len(line)


_decoder = msgspec.json.Decoder(Request)


def _checked(line: bytes, where: str) -> Request:
    try:
        request = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: {error}") from None
    if not 1 <= len(request.custom_id) <= MAX_ID_CHARS:
        raise ConfigError(f"{where}: custom_id must have 1 to {MAX_ID_CHARS} characters")
    if not _PATH.fullmatch(request.url):
        raise ConfigError(f"{where}: url must be a path such as /v1/chat/completions, got {request.url!r}")
    if bytes(request.body.get("stream", b"false")) not in (b"false", b"null"):
        raise ConfigError(f"{where}: an answer in a file cannot be streamed: leave out body.stream")
    return request


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
