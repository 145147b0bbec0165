"""The CPU offload tier for KV blocks, and the block moves between it and the KV pool."""

from __future__ import annotations

import statistics
import time
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from splitserve.engine_core.errors import ConfigError, WorkerError
from splitserve.worker.device.base import Device
from splitserve.worker.host import available_memory_bytes
from splitserve.worker.kv_cache.arriving_caches import Arrival
from splitserve.worker.kv_cache.layout import BlockShape
from splitserve.worker.parallel.shares import share

Int32 = npt.NDArray[np.int32]

# Bytes and rounds for measuring a move; large enough not to stay within the CPU's caches.
_MEASURED_BYTES = 32 << 20
_MEASURED_ROUNDS = 4
# Layers share a launch and an event until they move this many bytes: 80 us at 50 GB/s, several times what the
# host needs to enqueue it.
_GROUP_BYTES = 4 << 20


class HostBlocks:
    """Owns the CPU offload tier and moves blocks; steps compute in the pool only. Single-threaded.

    In a move, host block i is place num_blocks + i, after the pool's blocks. It is contiguous, so a device
    can copy it in one go; its pages are backed by memory when first written.

    Attributes:
        num_host_blocks: of the tier.
    """

    def __init__(self, device: Device, pool: torch.Tensor, shape: BlockShape, num_host_blocks: int) -> None:
        """Reserve address space for the tier.

        Args:
            device: where the pool lives.
            pool: what the attention backend allocated, [num_layers, pieces, num_blocks, ...].
            shape: of the pool's blocks.
            num_host_blocks: 0 = no tier; moves then stay within the pool.

        Raises:
            ConfigError: there is not enough memory; names the flag.
        """
        self._device = device
        self._pool = pool.view(shape.num_pieces, pool.shape[2], shape.piece_elements)
        self._num_layers = shape.num_layers
        self._layer_pieces = shape.layer_pieces
        self._num_blocks = self._pool.shape[1]
        self.num_host_blocks = num_host_blocks
        self._block_bytes = shape.num_bytes
        num_bytes = num_host_blocks * shape.num_bytes
        if num_bytes:
            # The pages of a pool on a CPU are backed as they are written, so they still count as free.
            pool_bytes = pool.nbytes if pool.device.type == "cpu" else 0
            _check_room(num_bytes, available_memory_bytes() - pool_bytes)
        try:
            host_shape = (num_host_blocks, shape.num_pieces, shape.piece_elements)
            self._host = device.host_pages(host_shape, shape.dtype)
        except (OSError, RuntimeError) as error:
            raise ConfigError(f"--kv-offload-gb: no memory for {num_host_blocks} blocks: {error}") from None

    def move(self, moves_from: Int32, moves_to: Int32) -> list[Arrival]:
        """Copy the content of each place moves_from[i] to moves_to[i], one after the other.

        Work enqueued earlier finishes first: it may read what is overwritten, or write what is copied.

        Returns:
            What to wait for before blocks of the pool are used, in layer order; empty on a device without a
            side stream.

        Raises:
            WorkerError: a place is neither in the pool nor in the tier, or the columns differ in length;
                nothing was copied.
        """
        if len(moves_from) != len(moves_to):
            raise WorkerError(f"a step moves from {len(moves_from)} places to {len(moves_to)}")
        num_places = self._num_blocks + self.num_host_blocks
        places = np.concatenate((moves_from, moves_to))
        # As unsigned numbers, negative places are large, so one comparison is enough.
        if len(places) and places.view(np.uint32).max() >= num_places:
            raise WorkerError(f"a step names places to move beyond the {num_places} there are")
        both = torch.from_numpy(places)
        columns, stream = (both[: len(moves_from)], both[len(moves_from) :]), self._device.side_stream
        if stream is None:
            self._device.ops.move_blocks(self._pool, self._host, *columns)
            return []
        groups = self._groups(len(moves_from))
        waits = stream.run(partial(self._move_layers, layers, *columns) for layers in groups)
        return [Arrival(layers.start, wait) for layers, wait in zip(groups, waits, strict=True)]

    def _groups(self, num_moves: int) -> list[range]:
        """Groups of layers that are moved, and waited for, together."""
        count = max(1, min(self._num_layers, num_moves * self._block_bytes // _GROUP_BYTES))
        return [share(self._num_layers, i, count) for i in range(count)]

    def _move_layers(self, layers: range, moves_from: torch.Tensor, moves_to: torch.Tensor) -> None:
        # The kernel copies the columns as arguments, so they need not be kept alive.
        pieces = slice(self._layer_pieces * layers.start, self._layer_pieces * layers.stop)
        self._device.ops.move_blocks(self._pool[pieces], self._host[:, pieces], moves_from, moves_to)

    def measure_ns(self) -> int:
        """Move blocks out and back, and return the median nanoseconds of one move; 0 without a tier.

        At most 32 MiB (or one block) of each side become backed by memory, and lose their contents.
        """
        if not self._num_blocks or not self.num_host_blocks:
            return 0
        count = min(self._num_blocks, self.num_host_blocks, max(1, _MEASURED_BYTES // self._block_bytes))
        inside = np.arange(count, dtype=np.int32)
        outside = inside + np.int32(self._num_blocks)
        # The first round backs the memory of both sides.
        self._timed_ns(inside, outside)
        self._timed_ns(outside, inside)
        times = [self._timed_ns(*pair) for pair in ((inside, outside), (outside, inside)) * _MEASURED_ROUNDS]
        return max(1, int(statistics.median(times)) // count)

    def _timed_ns(self, moves_from: Int32, moves_to: Int32) -> int:
        started = time.perf_counter_ns()
        for arrival in self.move(moves_from, moves_to):
            arrival.wait()
        self._device.synchronize()
        return time.perf_counter_ns() - started


def _check_room(num_bytes: int, free_bytes: int) -> None:
    if num_bytes > free_bytes:
        raise ConfigError(
            f"--kv-offload-gb asks for {num_bytes / 2**30:.2f} GiB of memory, but next to the KV cache only "
            f"{max(0, free_bytes) / 2**30:.2f} GiB are free"
        )
