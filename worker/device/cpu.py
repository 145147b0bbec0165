"""The CPU as a device: kernels work on the arrays in place, so there are no copies and no waits."""

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
from splitserve.worker.ops.quantization import KeptForm
from splitserve.worker.pages import zero_pages

_MAX_DEFAULT_BYTES = 4 << 30
_DEFAULT_SHARE = 0.4
# See SPLITSERVE_MULTIPLIES_WORDS in csrc/cpu/word_dot.h.
_WORD_ISAS = ("avx2", "avx512", "avx512_bf16")


class CpuDevice(Device):
    """The custom CPU kernels; whoever owns the process sets their thread count.

    Args:
        num_local_ranks: number of workers that share this machine's memory.
    """

    name = "cpu"
    torch_device = torch.device("cpu")
    # The kernels only ever receive weights made by matrix().
    ops = cast("Kernels[Matrix]", ops)

    def __init__(self, num_local_ranks: int = 1) -> None:
        self._num_local_ranks = num_local_ranks
        # Now, as ranks that share the memory load at the same time later.
        self._free_bytes = available_memory_bytes() // num_local_ranks

    @property
    def coded_dtypes(self) -> tuple[torch.dtype, ...]:
        """Return bfloat16."""
        return (torch.bfloat16,)

    @property
    def multiplies_byte_groups(self) -> bool:
        """Whether the kernels in use make integers of activations."""
        return ops.cpu_isa() in _WORD_ISAS

    @property
    def free_bytes(self) -> int:
        """Return this rank's share of what was free when it started."""
        return self._free_bytes

    def matrix(
        self, shape: tuple[int, int], dtype: torch.dtype, form: KeptForm, num_experts: int = 1
    ) -> PackedWeight:
        """Reserve address space, backed by memory as it is filled."""
        return PackedWeight(shape, dtype, form, num_experts)

    def matrix_bytes(
        self, shape: tuple[int, int], dtype: torch.dtype, form: KeptForm, num_experts: int = 1
    ) -> int:
        """Reserve address space for a moment."""
        return self.matrix(shape, dtype, form, num_experts).num_bytes

    def place(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the tensors themselves."""
        return tensors

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return new memory."""
        return torch.empty(shape, dtype=dtype)

    def pages(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return zero pages, large ones where the system has them."""
        return zero_pages(shape, dtype, huge=True)

    def fetch(self, tensor: torch.Tensor) -> Array:
        """Return a view."""
        array: Array = tensor.numpy()
        return array

    def histories(self, tokens: npt.NDArray[np.int32], rows: npt.NDArray[np.int32], width: int) -> Histories:
        """Return a view of all histories."""
        return Histories(torch.from_numpy(tokens), torch.from_numpy(rows))

    def host_pages(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return zero pages, backed by memory only when first written."""
        return zero_pages(shape, dtype)

    def synchronize(self) -> None:
        """Do nothing: kernels are synchronous."""

    def release_unused(self) -> None:
        """Do nothing: the system allocator holds back little."""

    def default_cache_bytes(self, run_largest_step: Callable[[], int]) -> int:
        """Return 40% of the free memory, divided among this machine's ranks, at most 4 GiB.

        The rest is left for activations, logits, the page cache of the weights and other processes.
        """
        return _default_bytes(available_memory_bytes() / self._num_local_ranks)

    def planned_cache_bytes(self, weights_bytes: int, activation_bytes: int) -> int:
        """Return the same of what the weights will leave."""
        return _default_bytes(self._free_bytes - weights_bytes)


def _default_bytes(free_bytes: float) -> int:
    return max(0, min(_MAX_DEFAULT_BYTES, int(free_bytes * _DEFAULT_SHARE)))
