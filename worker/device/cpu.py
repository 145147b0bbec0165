"""The CPU as a device: kernels work on the arrays themselves, so nothing is copied and nothing waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from splitserve.worker.device.base import Array, Device, Histories
from splitserve.worker.host import available_memory_bytes
from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.interface import Kernels
from splitserve.worker.ops.matrix import Matrix
from splitserve.worker.ops.packed_weight import PackedWeight
from splitserve.worker.ops.quantization import WeightForm
from splitserve.worker.pages import zero_pages

_MAX_DEFAULT_BYTES = 4 << 30
_DEFAULT_SHARE = 0.4


class CpuDevice(Device):
    """Our CPU kernels; their threads are set by whoever owns the process.

    Args:
        num_local_ranks: workers that share this machine's memory.
    """

    name = "cpu"
    torch_device = torch.device("cpu")
    # The kernels are only ever given weights that matrix() has made.
    ops = cast("Kernels[Matrix]", ops)

    def __init__(self, num_local_ranks: int = 1) -> None:
        self._num_local_ranks = num_local_ranks

    def matrix(self, shape: tuple[int, int], dtype: torch.dtype, form: WeightForm) -> PackedWeight:
        """Reserve address space, which is backed as it is filled."""
        return PackedWeight(shape, dtype, form)

    def place(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """They are there already."""
        return tensors

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return new memory."""
        return torch.empty(shape, dtype=dtype)

    def fetch(self, tensor: torch.Tensor) -> Array:
        """Return a view."""
        array: Array = tensor.numpy()
        return array

    def histories(self, tokens: npt.NDArray[np.int32], rows: npt.NDArray[np.int32], width: int) -> Histories:
        """Return a view of all histories."""
        return Histories(torch.from_numpy(tokens), torch.from_numpy(rows))

    def host_pages(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return pages that take memory only once they are written."""
        return zero_pages(shape, dtype)

    def synchronize(self) -> None:
        """Kernels return when they are done."""

    def release_unused(self) -> None:
        """The system's allocator keeps nothing worth the while."""

    def default_cache_bytes(self, run_largest_step: Callable[[], int]) -> int:
        """40% of what is free, parted among this machine's ranks, at most 4 GiB.

        The rest is left to activations, logits, the page cache of the weights and the machine's other
        processes.
        """
        return min(_MAX_DEFAULT_BYTES, int(available_memory_bytes() * _DEFAULT_SHARE / self._num_local_ranks))
