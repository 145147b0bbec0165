"""How many connections does each api-frontend of a launch have open? A few numbers in shared memory.

Each number is written by its own frontend only, except that the supervisor clears it when that frontend has
ended. Each is eight aligned bytes, so a reader sees either the old or the new value and no lock is needed.
"""

from __future__ import annotations

import mmap
import os
import tempfile

from splitserve.engine_core.errors import ConfigError

NOT_SERVING = -1
_BYTES = 8
MAX_COUNTS = 1024


class ConnectionCounts:
    """The counts, indexed by frontend number from 1 on; they stay mapped until the process ends."""

    def __init__(self, fd: int) -> None:
        """Map what create() made, here or in the process that inherited the descriptor.

        Raises:
            ConfigError: the descriptor is something else.
        """
        try:
            size = os.fstat(fd).st_size
            if size % _BYTES or not 0 < size <= MAX_COUNTS * _BYTES:
                raise ConfigError(f"descriptor {fd} does not contain the connection counts of a launch")
            self._counts = memoryview(mmap.mmap(fd, size)).cast("q")
        except OSError as error:
            raise ConfigError(f"descriptor {fd} cannot be used: {error.strerror}") from None
        self.fd = fd

    @classmethod
    def create(cls, num_frontends: int) -> ConnectionCounts:
        """Allocate the counts of `num_frontends` frontends, none of which serves yet.

        Raises:
            ConfigError: the system is out of memory or file descriptors.
        """
        try:
            fd = _anonymous_file()
            os.ftruncate(fd, num_frontends * _BYTES)
        except OSError as error:
            raise ConfigError(f"cannot create memory that frontends share: {error.strerror}") from None
        counts = cls(fd)
        for number in range(1, num_frontends + 1):
            counts[number] = NOT_SERVING
        return counts

    def __len__(self) -> int:
        return len(self._counts)

    def __getitem__(self, number: int) -> int:
        return self._counts[number - 1]

    def __setitem__(self, number: int, count: int) -> None:
        self._counts[number - 1] = count


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("splitserve-connections")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
