"""An open GGUF file: its metadata, and its tensors under the names that a checkpoint of the model has."""

from __future__ import annotations

import functools
import struct
from pathlib import Path

from splitserve.engine_core.checkpoint.gguf.header import MAGIC, Header, read_header
from splitserve.engine_core.checkpoint.open_file import OpenFile
from splitserve.engine_core.errors import ModelLoadError

_MAX_FLOATS = 4096


def is_gguf(path: Path) -> bool:
    """Whether this is a file that begins like a GGUF file."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


class GgufFile:
    """A checked file, kept open; close() it.

    Attributes:
        path: of the file.
        tensors: by their names in the file.
        metadata: by key.
    """

    def __init__(self, path: Path) -> None:
        """Open and check a file.

        Raises:
            ModelLoadError: names the file, and the tensor or metadata that is at fault.
        """
        self.path = path
        self._file = OpenFile(path)
        try:
            self.metadata, self.tensors = read_header(self._file)
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
        self._file.read_into(offset, target)

    def floats(self, name: str) -> tuple[float, ...] | None:
        """Return a short vector; None if there is none of this name.

        Raises:
            ModelLoadError: it is long, or not in float32.
        """
        entry = self.tensors.get(name)
        if entry is None:
            return None
        if entry.dtype != "F32" or len(entry.shape) != 1 or entry.shape[0] > _MAX_FLOATS:
            raise ModelLoadError(f"{self.path}: tensor {name!r} must be a short vector in F32")
        return struct.unpack(f"<{entry.shape[0]}f", self._file.read(entry.begin, entry.num_bytes))


class GgufContents:
    """What a file says about its model, read once and closed.

    Attributes:
        header: of the file.
        vectors: those that belong to the config, by name.
    """

    def __init__(self, path: Path) -> None:
        """Read a file; raises as GgufFile does."""
        file = GgufFile(path)
        try:
            self.path = path
            self.header = Header(file.metadata, file.tensors)
            self.vectors = {
                name: values for name in CONFIG_VECTORS if (values := file.floats(name)) is not None
            }
        finally:
            file.close()


CONFIG_VECTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors that say how positions are encoded: part of the config elsewhere."""


def read_contents(path: Path) -> GgufContents:
    """Return what a file says about its model; kept while the file stays the same.

    Raises:
        ModelLoadError: names the file and what is wrong with it.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be opened: {error.strerror}") from error
    return _read_contents(path, state.st_mtime_ns, state.st_size, state.st_ino)


@functools.lru_cache(1)
def _read_contents(path: Path, mtime_ns: int, num_bytes: int, inode: int) -> GgufContents:
    return GgufContents(path)
