"""Are the files of a checkpoint still those that were there before?"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

from splitserve.engine_core.checkpoint.gguf.parts import parts_beside


class FileState(NamedTuple):
    """What tells a file from another one that takes its place; of a link, the file that it leads to."""

    name: str
    num_bytes: int
    mtime_ns: int
    inode: int


def file_states(directory: str) -> list[FileState]:
    """Return the state of every file of a checkpoint, by name; of none if it does not exist."""
    states: list[FileState] = []
    if directory:
        with contextlib.suppress(OSError):
            place = Path(directory)
            for path in sorted(place.iterdir()) if place.is_dir() else [place, *parts_beside(place)]:
                info = path.stat()
                states.append(FileState(path.name, info.st_size, info.st_mtime_ns, info.st_ino))
    return states
