"""A file of weights that stays open from its check to its use, so that what is read is what was checked."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from splitserve.engine_core.checkpoint.lfs import MAGIC, refuse_pointer
from splitserve.engine_core.errors import ModelLoadError


class OpenFile:
    """An open file; close() it.

    Attributes:
        path: of the file.
        num_bytes: its size when it was opened.
    """

    def __init__(self, path: Path) -> None:
        """Open a file.

        Raises:
            ModelLoadError: it cannot be opened, or is a Git LFS pointer.
        """
        self.path = path
        try:
            self._file: BinaryIO = path.open("rb", buffering=0)
        except OSError as error:
            raise ModelLoadError(f"{path} cannot be opened: {error.strerror}") from error
        try:
            self.num_bytes = self._file.seek(0, 2)
            head = bytearray(min(self.num_bytes, len(MAGIC)))
            self.read_into(0, memoryview(head))
            refuse_pointer(path, bytes(head))
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill target with the file's bytes from offset on.

        Raises:
            ModelLoadError: the file was truncated since, or cannot be read.
        """
        try:
            self._file.seek(offset)
            done = 0
            while done < len(target):
                count = self._file.readinto(target[done:])  # type: ignore[attr-defined]
                if not count:
                    raise ModelLoadError(f"{self.path} ends at byte {offset + done}, while it is being read")
                done += count
        except OSError as error:
            raise ModelLoadError(f"{self.path} cannot be read: {error.strerror}") from error

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return some bytes; raises as read_into does."""
        target = bytearray(num_bytes)
        self.read_into(offset, memoryview(target))
        return bytes(target)
