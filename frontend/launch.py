"""The launch that a frontend of `splitserve serve` belongs to: its number, and what all of it share."""

from __future__ import annotations

from typing import NamedTuple

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.connection_counts import UNUSED, ConnectionCounts
from splitserve.frontend.config import FrontendConfig


class Launch(NamedTuple):
    """What a frontend knows of its launch.

    Attributes:
        directory: private; the frontends' own sockets lie there.
        number: of this frontend, from 1 on; its successor after a crash has the same, the one in a rolling
            restart another.
        counts: open connections of all frontends.
    """

    directory: str
    number: int
    counts: ConnectionCounts

    @property
    def others(self) -> list[int]:
        """The numbers of the other frontends that are there now, or expected to be."""
        numbers = range(1, len(self.counts) + 1)
        return [number for number in numbers if number != self.number and self.counts[number] != UNUSED]


def join_launch(config: FrontendConfig) -> Launch | None:
    """Return the launch that the configuration names; None for a frontend that was started by itself.

    Raises:
        ConfigError: the descriptor holds no counts, or none of this frontend.
    """
    if config.launch_fd is None:
        return None
    counts = ConnectionCounts(config.launch_fd)
    if config.launch_number > len(counts):
        raise ConfigError(f"--launch-number must be from 1 to {len(counts)}, got {config.launch_number}")
    return Launch(config.launch_dir, config.launch_number, counts)
