"""Exchanges between ranks over torch.distributed: gloo between CPUs, NCCL between GPUs.

CPU ranks on one machine exchange partial sums through shared memory, even if pipeline stages use gloo.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, Store, TCPStore

from splitserve.engine_core.errors import RankLostError
from splitserve.worker.config import WorkerConfig
from splitserve.worker.device.base import Device
from splitserve.worker.device.out_of_memory import is_out_of_memory
from splitserve.worker.device.workspace import Workspace
from splitserve.worker.parallel.group import RankGroup
from splitserve.worker.parallel.mesh import Mesh
from splitserve.worker.parallel.shared_memory import MEETING_S, SharedMemoryGroup, can_share_memory
from splitserve.worker.parallel.shares import scaled, share

# Each tensor goes over the backend of its own device, so tokens can travel between the CPUs of GPU workers.
_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
_MEETING = timedelta(seconds=MEETING_S)
# What is exchanged in about the time that one exchange more takes: by gloo as measured on loopback; between
# GPUs what NVLink of an H100 (450 GB/s) carries in 10 us, from papers.
_MIN_SAVED_BYTES = {"cpu": 1 << 20, "cuda": 4 << 20}
# The newer name; torch 2.13 deprecates the older one.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


class DistributedMeeting:
    """Joins this process's ranks; one at a time in a process.

    Attributes:
        mesh: this rank's place among them.
    """

    def __init__(self, config: WorkerConfig, device: Device) -> None:
        """Return once all ranks have joined.

        Args:
            config: names the rendezvous, file:///PATH for ranks of one machine, which then talk over
                loopback, or tcp://HOST:PORT; and the sizes.
            device: what this rank computes on.

        Raises:
            RankLostError: they cannot be joined.
        """
        if config.place.rendezvous.startswith("file:"):
            # Otherwise gloo listens on the interface that the host's name resolves to, NCCL on any but this.
            for library in ("GLOO", "NCCL"):
                os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        with _peers():
            store = _meeting_place(config)
            store.set_timeout(_MEETING)
            dist.init_process_group(
                _BACKENDS[device.torch_device.type],
                store=store,
                rank=config.place.rank,
                world_size=config.num_ranks,
                timeout=_MEETING,
            )
            groups = _stage_groups(config.tensor_parallel_size, config.pipeline_parallel_size)
            size = config.tensor_parallel_size
            index, place = divmod(config.place.rank, size)
            self._group = groups[index]
            self._shared: SharedMemoryGroup | None = None
            group: RankGroup | None = None
            if size > 1 and can_share_memory(config, device):
                group = self._shared = SharedMemoryGroup(PrefixStore(f"stage {index}", store), place, size)
            elif size > 1:
                group = DistributedGroup(self._group, device)
        self._stage = DistributedStage(index, config) if config.pipeline_parallel_size > 1 else None
        self.mesh = Mesh(group, self._stage, config.splits_experts)

    def begin(self, timeout_s: float) -> None:
        """Wait until every rank has loaded its model; from now on no exchange waits longer than timeout_s.

        Raises:
            RankLostError: another rank is gone.
        """
        with _peers():
            # As a barrier, but between the CPUs: no GPU need be ready for it.
            dist.all_reduce(torch.zeros(1))
        timeout = timedelta(seconds=timeout_s)
        for group in (dist.group.WORLD, self._group):
            if group is not None:
                group.set_timeout(timeout)
        if self._stage is not None:
            self._stage.timeout = timeout
        if self._shared is not None:
            self._shared.set_timeout(timeout_s)

    def part(self) -> None:
        """Leave the other ranks."""
        dist.destroy_process_group()


def _stage_groups(num_ranks: int, num_stages: int) -> list[dist.ProcessGroup | None]:
    """Make the group of each stage's ranks, as all ranks have to; None where that is all of them."""
    if num_stages == 1:
        return [None]
    stages = (scaled(range(i, i + 1), num_ranks) for i in range(num_stages))
    return [dist.new_group(list(stage), timeout=_MEETING) for stage in stages]


def _meeting_place(config: WorkerConfig) -> Store:
    if config.place.rendezvous.startswith("file://"):
        return FileStore(config.place.rendezvous.removeprefix("file://"), config.num_ranks)
    host, _, port = config.place.rendezvous.removeprefix("tcp://").rpartition(":")
    listening = config.place.rendezvous_fd if config.place.rendezvous_fd >= 0 else None
    is_master = config.place.rank == 0
    return TCPStore(
        host.strip("[]"), int(port), config.num_ranks, is_master, _MEETING, master_listen_fd=listening
    )


class DistributedStage:
    """A stage of the pipeline and its neighbours' ranks of the same place; see Stage.

    Attributes:
        timeout: longest wait for a neighbour.
    """

    def __init__(self, index: int, config: WorkerConfig) -> None:
        self.index = index
        self.count = config.pipeline_parallel_size
        self._next = config.place.rank + config.tensor_parallel_size
        self._before = config.place.rank - config.tensor_parallel_size
        # What was sent and may still be on its way; at most one step per stage.
        self._sent: deque[tuple[dist.Work, torch.Tensor]] = deque()
        self.timeout = _MEETING

    def send(self, activations: torch.Tensor) -> None:
        """Hand a step's activations to the next stage; see Stage."""
        with _peers():
            if len(self._sent) == self.count:
                self._wait(*self._sent.popleft())
            work = dist.isend(activations, self._next)
        assert work is not None, "this rank is not among those that have met"
        self._sent.append((work, activations))

    def receive(self, activations: torch.Tensor) -> None:
        """Wait for what the stage before has sent of the same step; see Stage."""
        with _peers():
            work = dist.irecv(activations, self._before)
            assert work is not None, "this rank is not among those that have met"
            self._wait(work, activations)

    def _wait(self, work: dist.Work, activations: torch.Tensor) -> None:
        if activations.is_cuda:
            # Waits on the stream; NCCL looks after the time itself.
            work.wait()
        else:
            # gloo would wait as long as when the ranks met, whatever was set since.
            work.wait(self.timeout)


class DistributedGroup:
    """The ranks of a stage; see RankGroup."""

    def __init__(self, group: dist.ProcessGroup | None, device: Device) -> None:
        """Args: group None for all ranks; device is what the layers compute on."""
        self._group = group
        self._ops = device.ops
        self._min_saved_bytes = _MIN_SAVED_BYTES[device.torch_device.type]
        # Calls of NCCL are; those of gloo end before they return.
        self.can_be_captured = device.name == "cuda"
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._buffers = Workspace(torch.float32, device.torch_device)

    @property
    def generation(self) -> int:
        """Counts the buffers of exchanges that were made or replaced; see RankGroup."""
        return self._buffers.generation

    def sum_into(self, out: torch.Tensor, partial: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Write the sum of all ranks' partial sums, and a bias, to out; see RankGroup.

        Either way has the same bits, and the choice depends on what all ranks have in common.
        """
        sum_up = self._sum_slices if self._saves_by_slices(out, partial) else self._sum_whole
        with _peers():
            sum_up(out.view(-1), partial.view(-1), bias)

    def _saves_by_slices(self, out: torch.Tensor, partial: torch.Tensor) -> bool:
        """Whether sums are so large that one exchange more costs less than the bytes that it saves a rank."""
        if partial.numel() % self.size:
            return False
        received = (self.size - 1) * partial.nbytes
        received_in_slices = (self.size - 1) * (partial.nbytes + out.nbytes) // self.size
        return received - received_in_slices >= self._min_saved_bytes

    def _sum_whole(self, out: torch.Tensor, partial: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Each rank receives all partial sums, and adds them up."""
        parts = self._take_parts(out.numel(), partial.dtype)
        _all_gather(parts.view(-1), partial, group=self._group)
        self._ops.sum_parts(out, parts, bias)

    def _sum_slices(self, out: torch.Tensor, partial: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Each rank receives a slice of all partial sums, adds it up, and sends the rounded result to all."""
        size = out.numel() // self.size
        parts = self._take_parts(size, partial.dtype)
        dist.all_to_all_single(parts.view(-1), partial, group=self._group)
        first = self.rank * size
        own = out[first : first + size]
        self._ops.sum_parts(own, parts, bias, first)
        _all_gather(out, own, group=self._group)

    def _take_parts(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return self._buffers.take(f"parts of {dtype}", self.size, size, dtype)

    def gather_columns(self, out: torch.Tensor | None, columns: torch.Tensor, num_columns: int) -> None:
        """Put the columns of all ranks side by side on rank 0; see RankGroup."""
        count, width = columns.shape[0], -(-num_columns // self.size)
        if columns.shape[1] < width:
            # All ranks send as many columns as the one with the most.
            padded = self._buffers.take("columns", count, width)
            padded[:, : columns.shape[1]] = columns
            columns = padded
        if out is None:
            with _peers():
                dist.gather(columns, group=self._group, group_dst=0)
            return
        parts = self._buffers.take("all columns", self.size * count, width).view(self.size, count, width)
        with _peers():
            dist.gather(columns, list(parts), group=self._group, group_dst=0)
        for rank in range(self.size):
            span = share(num_columns, rank, self.size)
            out[:, span.start : span.stop] = parts[rank, :, : len(span)]

    def settle(self, values: torch.Tensor) -> None:
        """End a step with the values of rank 0; see RankGroup."""
        with _peers():
            dist.broadcast(values, group=self._group, group_src=0)

    def abandon_step(self) -> bool:
        """Do nothing: a rank that waits for a collective call cannot be told; see RankGroup."""
        return False


@contextmanager
def _peers() -> Iterator[None]:
    """Turn what torch raises when a peer is gone or late into the error that says so."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise RankLostError(f"an exchange with the other ranks failed: {error}") from error
