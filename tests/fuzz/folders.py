"""Small checkpoints in memory, for targets that read files or need a tokenizer."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

from splitserve.frontend.text.tokenizer import Tokenizer
from tests.frontend.checkpoints import KINDS, write_checkpoint

_SHARED_MEMORY = Path("/dev/shm")


def memory_folder() -> Path | None:
    """A file system in memory, if there is one: every case writes a file."""
    return _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None


def make_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that is removed with the object."""
    return tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory_folder())


@cache
def small_tokenizer() -> Tokenizer:
    """A byte-level tokenizer of 387 tokens."""
    with make_folder() as folder:
        return Tokenizer(write_checkpoint(Path(folder), KINDS["byte_level"]()))
