"""What one worker is told: the settings it shares with its engine, and its place among the ranks."""

from __future__ import annotations

import re

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.settings.checks import check_address, check_range
from splitserve.engine_core.settings.worker_settings import WorkerSettings


class WorkerConfig(WorkerSettings, frozen=True, kw_only=True):
    """Everything a worker is told, besides the settings of its engine:

    Attributes:
        connect: ZMQ address of the engine's worker socket; empty for a worker that lives inside its caller.
        rank: index of this worker within its engine; its ZMQ identity is the decimal digits of it.
        rendezvous: where the ranks meet, file:///PATH or tcp://HOST:PORT; empty for a single rank.
        rendezvous_fd: rank 0's socket that listens at a tcp rendezvous; -1 makes one, on all interfaces.
        num_local_ranks: ranks that share this machine's cores and memory.
        exchange_timeout_s: longest wait for the other ranks within a step.
    """

    connect: str = ""
    rank: int = 0
    rendezvous: str = ""
    rendezvous_fd: int = -1
    num_local_ranks: int = 1
    exchange_timeout_s: float = 60.0

    def validate(self) -> None:
        """Check every value against its range.

        Raises:
            ConfigError: names the flag and the range.
        """
        super().validate()
        check_range("--rank", self.rank, 0, self.num_ranks - 1)
        check_range("--num-local-ranks", self.num_local_ranks, 1, self.num_ranks)
        check_range("--exchange-timeout", self.exchange_timeout_s, 0.1, 3600)
        is_rendezvous = re.fullmatch(r"file:///.{1,200}|tcp://[^/]{1,200}:\d{1,5}", self.rendezvous)
        if self.num_ranks > 1 and not is_rendezvous:
            raise ConfigError(
                f"--rendezvous must be file:///PATH or tcp://HOST:PORT, got {self.rendezvous!r}"
            )
        if self.connect:
            check_address("--connect", self.connect)
