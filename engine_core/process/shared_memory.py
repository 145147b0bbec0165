"""Where memory comes from that a process shares with the children it starts: a file without a name."""

from __future__ import annotations

import mmap
import os
import tempfile

from splitserve.engine_core.errors import ConfigError

WORD_BYTES = 8


def create_words(name: str, num_words: int) -> int:
    """Return the descriptor of new memory of so many 64-bit words, all 0; children may inherit it.

    Args:
        name: shown by the system in lists of open files.
        num_words: from 1 on.

    Raises:
        ConfigError: the system is out of memory or file descriptors.
    """
    try:
        fd = _anonymous_file(name)
        os.ftruncate(fd, num_words * WORD_BYTES)
    except OSError as error:
        raise ConfigError(f"cannot create memory to share with other processes: {error.strerror}") from None
    return fd


def map_words(fd: int, max_words: int, what: str) -> memoryview:
    """Map what create_words() made, here or in the process that inherited the descriptor.

    Each word is eight aligned bytes, so a reader sees either the old or the new value and no lock is needed.
    It stays mapped until the process ends.

    Args:
        fd: the descriptor.
        max_words: more are not plausible.
        what: it should contain, for the error message.

    Raises:
        ConfigError: the descriptor is something else.
    """
    try:
        size = os.fstat(fd).st_size
        if size % WORD_BYTES or not 0 < size <= max_words * WORD_BYTES:
            raise ConfigError(f"descriptor {fd} does not contain {what}")
        return memoryview(mmap.mmap(fd, size)).cast("q")
    except OSError as error:
        raise ConfigError(f"descriptor {fd} cannot be used: {error.strerror}") from None


def _anonymous_file(name: str) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
