"""Whether a file is a Git LFS pointer: the lines that replace it in a repository cloned without Git LFS."""

from __future__ import annotations

from pathlib import Path

from splitserve.engine_core.errors import ModelLoadError

MAGIC = b"version https://git-lfs.github.com/spec/"


def refuse_pointer(path: Path, head: bytes) -> None:
    """Refuse a file that begins like a pointer.

    Args:
        path: of the file, for the error.
        head: its first len(MAGIC) bytes or more.

    Raises:
        ModelLoadError: it is a pointer; the message says how to get the file.
    """
    if head.startswith(MAGIC):
        raise ModelLoadError(
            f"{path} is a Git LFS pointer, not the file itself: run `git lfs pull` in {path.parent}, "
            "or download the model with `hf download`"
        )
