"""The file of answers: appended line by line, and after a crash the record of what is done."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from splitserve.engine_core.batch_lines.answer_line import AnswerLine
from splitserve.engine_core.errors import ConfigError

# How every line begins, those that were cut off too.
BEGINNING = b'{"id":"'


class _Answer(msgspec.Struct, frozen=True):
    """What tells an answer from a request, which has a name as well."""

    custom_id: str
    response: msgspec.Raw


class AnswerFile:
    """The file that answers are appended to; no other process may do so meanwhile.

    A line that a crash has cut off is removed; a file of anything else is left as it is. The last line of
    another writer gets the end that it may lack.

    Attributes:
        done: names of the requests that have an answer.

    Args:
        path: of the file, made if there is none.
        overwrite: begin anew, whatever is in it.

    Raises:
        ConfigError: it cannot be written, is in use, or is no file of answers.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self.path = path
        self._file = _locked(path)
        if overwrite:
            self._file.truncate(0)
        try:
            self.done = self._read()
        except ConfigError:
            self._file.close()
            raise

    def check_belongs_to(self, names: Collection[str]) -> None:
        """Refuse answers to other requests than these.

        Raises:
            ConfigError: there is one, probably of another file.
        """
        if strange := next((name for name in self.done if name not in names), None):
            raise ConfigError(
                f"{self.path} has an answer to {strange!r}, which is not asked: "
                "name another file, or --overwrite"
            )

    def append(self, answer: AnswerLine) -> None:
        """Append an answer; it is in the file when this returns, for a process that dies then."""
        self._file.write(answer.encoded())
        self.done.add(answer.custom_id)

    def sync(self) -> None:
        """Wait until all answers are on disk, for a machine that dies then."""
        os.fdatasync(self._file.fileno())

    def close(self) -> None:
        """Let others write it."""
        self._file.close()

    def _read(self) -> set[str]:
        done: set[str] = set()
        end = 0
        has_end = True
        self._file.seek(0)
        for number, line in enumerate(_lines(self._file), 1):
            try:
                if _is_cut_off(line):
                    break
                done.add(msgspec.json.decode(line, type=_Answer).custom_id)
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise ConfigError(
                    f"line {number} of {self.path} is no answer of a batch: name another file, or --overwrite"
                ) from None
            end += len(line)
            has_end = line.endswith(b"\n")
        self._file.truncate(end)
        self._file.seek(0, os.SEEK_END)
        if not has_end:
            self._file.write(b"\n")
        return done


def _is_cut_off(line: bytes) -> bool:
    return not line.endswith(b"\n") and line[: len(BEGINNING)] == BEGINNING[: len(line)]


def _lines(file: BinaryIO) -> Iterator[bytes]:
    # In pieces of a buffer's size: the file itself is unbuffered, so that a line is written by one call.
    rest = b""
    while data := file.read(2**20):
        *lines, rest = (rest + data).split(b"\n")
        yield from (line + b"\n" for line in lines)
    if rest:
        yield rest


def _locked(path: Path) -> BinaryIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644), "r+b", buffering=0)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ConfigError(f"{path} is written by another process") from None
    return file
