"""How many connections does each api-frontend of a launch have open? A few numbers in shared memory.

Each number is written by its own frontend only, except that the supervisor sets it before that frontend
starts and after it has ended.
"""

from __future__ import annotations

from splitserve.engine_core.process.shared_memory import create_words, map_words

NOT_SERVING = -1
# No frontend has this number now, nor is one expected.
UNUSED = -2
ABSENT = (NOT_SERVING, UNUSED)
MAX_COUNTS = 1024


class ConnectionCounts:
    """The counts, indexed by frontend number from 1 on; they stay mapped until the process ends."""

    def __init__(self, fd: int) -> None:
        """Map what create() made, here or in the process that inherited the descriptor.

        Raises:
            ConfigError: the descriptor is something else.
        """
        self._counts = map_words(fd, MAX_COUNTS, "the connection counts of a launch")
        self.fd = fd

    @classmethod
    def create(cls, num_frontends: int) -> ConnectionCounts:
        """Allocate the counts of `num_frontends` frontends, none of which serves yet.

        Raises:
            ConfigError: the system is out of memory or file descriptors.
        """
        fd = create_words("splitserve-connections", num_frontends)
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
