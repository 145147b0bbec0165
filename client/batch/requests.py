"""The lines of a batch file: read, checked before anything is sent, and found again by their offsets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from splitserve.engine_core.batch_lines.request_line import LineError, RequestLine, read_request
from splitserve.engine_core.errors import ConfigError

MAX_LINE_BYTES = 2**26


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

    def read(self, place: Place) -> RequestLine:
        """Return a request."""
        self._file.seek(place.offset)
        return read_request(self._file.readline())

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


def _checked(line: bytes, where: str) -> RequestLine:
    try:
        return read_request(line)
    except LineError as error:
        raise ConfigError(f"{where}: {error}") from None


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
