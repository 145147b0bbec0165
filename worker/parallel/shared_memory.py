"""Exchanges between ranks on one machine's CPUs, through memory that they share."""

from __future__ import annotations

import fcntl
import mmap
import os
from datetime import timedelta

import torch
from torch.distributed import FileStore, Store

from splitserve.engine_core.errors import RankLostError
from splitserve.worker.config import WorkerConfig
from splitserve.worker.device.base import Device
from splitserve.worker.parallel import exchange as exchange_ops
from splitserve.worker.parallel.exchange import Exchange
from splitserve.worker.parallel.mesh import Mesh

# Nobody may shrink what others have mapped: they would die of it.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_NS = 1_000_000_000
# Ranks load at their own pace; one that dies meanwhile is noticed by the engine, which ends the others.
MEETING_S = 3600.0


def can_share_memory(config: WorkerConfig, device: Device) -> bool:
    """Whether all ranks are on this machine and keep what they exchange in its memory."""
    return device.name == "cpu" and config.place.rendezvous.startswith("file://")


class SharedMemoryMeeting:
    """Joins ranks that need a SharedMemoryGroup only: no stages, so no torch.distributed and no sockets.

    Attributes:
        mesh: this rank's place among them.
    """

    def __init__(self, config: WorkerConfig) -> None:
        """Return once all ranks have come.

        Raises:
            RankLostError: they cannot be joined.
        """
        try:
            store = FileStore(config.place.rendezvous.removeprefix("file://"), config.num_ranks)
            store.set_timeout(timedelta(seconds=MEETING_S))
            self._group = SharedMemoryGroup(store, config.place.rank, config.num_ranks)
        except (OSError, RuntimeError) as error:
            raise RankLostError(f"the ranks cannot share memory: {error}") from error
        self.mesh = Mesh(self._group, None, config.splits_experts)

    def begin(self, timeout_s: float) -> None:
        """Wait until every rank has loaded its model; from now on no exchange waits longer than timeout_s.

        Raises:
            RankLostError: another rank is gone.
        """
        self._group.wait_for_all()
        self._group.set_timeout(timeout_s)

    def part(self) -> None:
        """Leave the other ranks: the memory is unmapped with the last tensor on it."""


class SharedMemoryGroup:
    """The ranks of a stage, all on this machine; see RankGroup.

    The memory has no name in any folder: rank 0 makes it and the others open it by way of its descriptor,
    which the system grants to the same user. It is gone with the last rank, however that ends.
    """

    can_be_captured = True
    # All that is exchanged goes through the memory that was mapped at the start.
    generation = 0

    def __init__(self, store: Store, rank: int, size: int) -> None:
        """Return once all ranks have mapped the memory; exchanges may wait for as long as loading takes.

        Args:
            store: where the ranks meet; nothing else is kept in it.
            rank: of this process.
            size: how many there are.

        Raises:
            RuntimeError: the others did not come within the store's time.
            OSError: the memory cannot be had.
        """
        self.rank = rank
        self.size = size
        memory = torch.frombuffer(_map(store, rank, size), dtype=torch.uint8)
        own = torch.zeros(exchange_ops.OWN_WORDS, dtype=torch.int64)
        self._exchange = Exchange(memory, own, rank, size)
        self.set_timeout(MEETING_S)

    def set_timeout(self, timeout_s: float) -> None:
        """Wait no longer than this for another rank in an exchange; recorded ones follow."""
        self._exchange.own[exchange_ops.TIMEOUT_NS] = round(timeout_s * _NS)

    def wait_for_all(self) -> None:
        """Return once every rank has called this.

        Raises:
            RankLostError: one has not come in time.
        """
        self.settle(torch.empty(0, dtype=torch.int32))

    def sum_into(self, out: torch.Tensor, partial: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Write the sum of all ranks' partial sums, and a bias, to out; see RankGroup."""
        exchange_ops.sum_into(self._exchange, out, partial, bias)

    def gather_columns(self, out: torch.Tensor | None, columns: torch.Tensor, num_columns: int) -> None:
        """Put the columns of all ranks side by side on rank 0; see RankGroup."""
        exchange_ops.gather_columns(self._exchange, out, columns, num_columns)

    def settle(self, values: torch.Tensor) -> None:
        """End a step with the values of rank 0; see RankGroup."""
        exchange_ops.settle(self._exchange, values)

    def abandon_step(self) -> bool:
        """Let all ranks drop the step; see RankGroup."""
        exchange_ops.abandon(self._exchange)
        return True


def _map(store: Store, rank: int, size: int) -> mmap.mmap:
    num_bytes = exchange_ops.num_bytes(size)
    if rank == 0:
        descriptor = os.memfd_create("splitserve-exchange", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, num_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        store.set("memory", f"/proc/{os.getpid()}/fd/{descriptor}")
    else:
        descriptor = os.open(store.get("memory").decode(), os.O_RDWR | os.O_CLOEXEC)
    try:
        memory = mmap.mmap(descriptor, num_bytes)
        store.set(f"mapped by {rank}", "")
        # Rank 0's descriptor is what the others open.
        store.wait([f"mapped by {other}" for other in range(size)])
    finally:
        os.close(descriptor)
    return memory
