"""The rank group over torch.distributed: gloo between CPUs, NCCL between GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store, TCPStore

from engine_core.errors import RankLostError
from worker.layers.workspace import Workspace
from worker.parallel.shares import share

# Each tensor goes over the backend of its own device, so tokens can travel between the CPUs of GPU workers.
_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
# Ranks load at their own pace; one that dies meanwhile is noticed by the engine, which ends the others.
_MEETING = timedelta(hours=1)
# The newer name; torch 2.13 deprecates the older one.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


def meet(rendezvous: str, rank: int, num_ranks: int, device: torch.device, listening_fd: int = -1) -> None:
    """Join this process's ranks; returns once all have come.

    Args:
        rendezvous: file:///PATH for ranks of one machine, which then talk over loopback, or tcp://HOST:PORT.
        rank: of this process.
        num_ranks: how many join.
        device: what this rank computes on.
        listening_fd: rank 0's socket that listens at a tcp rendezvous, which this call takes over; without it
            torch listens on all interfaces.

    Raises:
        RankLostError: they cannot be joined.
    """
    if rendezvous.startswith("file:"):
        # Otherwise gloo listens on the interface that the host's name resolves to.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with _peers():
        store = _store(rendezvous, rank, num_ranks, listening_fd)
        store.set_timeout(_MEETING)
        dist.init_process_group(
            _BACKENDS[device.type],
            store=store,
            rank=rank,
            world_size=num_ranks,
            timeout=_MEETING,
        )


def _store(rendezvous: str, rank: int, num_ranks: int, listening_fd: int) -> Store:
    if rendezvous.startswith("file://"):
        return FileStore(rendezvous.removeprefix("file://"), num_ranks)
    host, _, port = rendezvous.removeprefix("tcp://").rpartition(":")
    listening = listening_fd if listening_fd >= 0 else None
    return TCPStore(host.strip("[]"), int(port), num_ranks, rank == 0, _MEETING, master_listen_fd=listening)


def part() -> None:
    """Leave the ranks; harmless if they were never joined."""
    if dist.is_initialized():
        dist.destroy_process_group()


class DistributedGroup:
    """All ranks that have met, as one group; see RankGroup."""

    def __init__(self, device: torch.device) -> None:
        """Args: device is what the tensors of layers live on."""
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._buffers = Workspace(torch.float32, device)

    def begin(self, timeout_s: float) -> None:
        """Wait until all ranks have loaded; see RankGroup."""
        with _peers():
            dist.barrier()
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s))

    def sum_into(self, out: torch.Tensor, partial: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Write the sum of all ranks' partial sums, and a bias, to out; see RankGroup."""
        count, width = partial.shape
        parts = self._buffers.take(f"parts of {partial.dtype}", self.size * count, width, partial.dtype)
        with _peers():
            _all_gather(parts, partial)
        total = parts[:count].float()
        for rank in range(1, self.size):
            total += parts[rank * count : (rank + 1) * count]
        if bias is not None:
            total += bias
        out.copy_(total)

    def gather_columns(self, columns: torch.Tensor, num_columns: int) -> torch.Tensor | None:
        """Put the columns of all ranks side by side on rank 0; see RankGroup."""
        count, width = columns.shape[0], -(-num_columns // self.size)
        if columns.shape[1] < width:
            # All ranks send as many columns as the one with the most.
            padded = self._buffers.take("columns", count, width)
            padded[:, : columns.shape[1]] = columns
            columns = padded
        if self.rank != 0:
            with _peers():
                dist.gather(columns)
            return None
        parts = self._buffers.take("all columns", self.size * count, width).view(self.size, count, width)
        with _peers():
            dist.gather(columns, list(parts))
        out = self._buffers.take("gathered", count, num_columns)
        for rank in range(self.size):
            span = share(num_columns, rank, self.size)
            out[:, span.start : span.stop] = parts[rank, :, : len(span)]
        return out

    def broadcast(self, values: torch.Tensor) -> None:
        """Overwrite a tensor on the CPU by that of rank 0; see RankGroup."""
        with _peers():
            dist.broadcast(values, 0)


@contextmanager
def _peers() -> Iterator[None]:
    """Turn what torch raises when a peer is gone or late into the error that says so."""
    try:
        yield
    except RuntimeError as error:
        raise RankLostError(f"an exchange with the other ranks failed: {error}") from error
