"""An open GGUF file: its metadata, and its tensors under the names that a checkpoint of the model has."""

from __future__ import annotations

import functools
import struct
from pathlib import Path

from splitserve.engine_core.checkpoint.gguf.header import MAGIC, Header, read_header
from splitserve.engine_core.checkpoint.gguf.parts import check_part, check_total, other_parts, parts_beside
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


def open_parts(path: Path) -> list[GgufFile]:
    """Open and check a file and the other parts of its model; close() each.

    Raises:
        ModelLoadError: names the file, and what is wrong with it.
    """
    files = [GgufFile(path)]
    try:
        paths = other_parts(path, files[0].metadata)
        for number, part in enumerate(paths, start=1):
            files.append(GgufFile(part))
            check_part(part, files[-1].metadata, number, len(paths) + 1)
        names = [name for file in files for name in file.tensors]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ModelLoadError(f"{path}: its parts have the tensor {twice!r} twice")
        if paths:
            check_total(path, files[0].metadata, len(names))
    except BaseException:
        for file in files:
            file.close()
        raise
    return files


class GgufContents:
    """What a file, with the other parts of its model, says about that; read once and closed.

    Attributes:
        header: of the file, with the tensors of all parts.
        vectors: those that belong to the config, by name.
    """

    def __init__(self, path: Path) -> None:
        """Read the files; raises as open_parts does."""
        files = open_parts(path)
        try:
            self.path = path
            tensors = {name: entry for file in files for name, entry in file.tensors.items()}
            self.header = Header(files[0].metadata, tensors)
            self.vectors = {
                name: values
                for name in CONFIG_VECTORS
                for file in files
                if (values := file.floats(name)) is not None
            }
        finally:
            for file in files:
                file.close()


CONFIG_VECTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors that say how positions are encoded: part of the config elsewhere."""


def read_contents(path: Path) -> GgufContents:
    """Return what a file says about its model; kept while it, and other parts of it, stay the same.

    Raises:
        ModelLoadError: names the file and what is wrong with it.
    """
    states = []
    for part in (path, *parts_beside(path)):
        try:
            state = part.stat()
        except OSError as error:
            raise ModelLoadError(f"{part} cannot be opened: {error.strerror}") from error
        states.append((state.st_mtime_ns, state.st_size, state.st_ino))
    return _read_contents(path, tuple(states))


@functools.lru_cache(1)
def _read_contents(path: Path, states: tuple[tuple[int, int, int], ...]) -> GgufContents:
    return GgufContents(path)
