"""The configuration of one worker: its place, from the command line, and the engine's settings."""

from __future__ import annotations

from typing import Self

import msgspec

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.worker_messages import Configure
from splitserve.engine_core.settings.checks import check_range
from splitserve.engine_core.settings.worker_settings import WorkerPlace, WorkerSettings

# The default for a worker that runs inside its caller's process.
NOWHERE = WorkerPlace(connect="", rank=0)


class WorkerConfig(WorkerSettings, frozen=True, kw_only=True):
    """The engine's settings, and:

    Attributes:
        place: the worker's place among the ranks.
        num_local_ranks: ranks that share this machine's cores and memory.
        exchange_timeout_s: longest wait for the other ranks within a step.
        worker_wait_s: how long it waits for a successor of its engine; 0 for not at all.
        fit: it loads nothing, and says what it would take.
    """

    place: WorkerPlace = NOWHERE
    num_local_ranks: int = 1
    exchange_timeout_s: float = 60.0
    worker_wait_s: float = 0.0
    fit: bool = False

    @classmethod
    def of(cls, place: WorkerPlace, told: Configure) -> Self:
        """Combine the command line and the engine's Configure message.

        Raises:
            ConfigError: a value is out of range or contradicts another.
        """
        config = cls(
            **msgspec.structs.asdict(told.settings),
            place=place,
            num_local_ranks=told.num_local_ranks,
            exchange_timeout_s=told.exchange_timeout_s,
            worker_wait_s=told.worker_wait_s,
            fit=told.fit,
        )
        config.validate()
        return config

    def validate(self) -> None:
        """Check every value against its range.

        Raises:
            ConfigError: names the flag and the range.
        """
        super().validate()
        check_range("--rank", self.place.rank, 0, self.num_ranks - 1)
        check_range("the number of ranks on a machine", self.num_local_ranks, 1, self.num_ranks)
        check_range("the longest wait for other ranks", self.exchange_timeout_s, 0.1, 3600)
        check_range("the wait for another engine", self.worker_wait_s, 0, 86400)
        if self.num_ranks > 1 and not self.place.rendezvous:
            raise ConfigError(f"--rendezvous must be given to each of {self.num_ranks} ranks")
