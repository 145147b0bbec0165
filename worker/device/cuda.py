"""A CUDA device: custom kernels on torch's current stream, and copies through pinned memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from splitserve.worker.device.base import Array, Device, Histories
from splitserve.worker.device.captures import Captures
from splitserve.worker.device.memory import cache_bytes, free_bytes, read_memory
from splitserve.worker.device.side_stream import CudaSideStream
from splitserve.worker.device.waiting import wait_for
from splitserve.worker.host import available_memory_bytes
from splitserve.worker.ops.codes.weight import CodedWeight, coded_bytes
from splitserve.worker.ops.cuda import CudaOps
from splitserve.worker.ops.dense_weight import DenseWeight
from splitserve.worker.ops.interface import Kernels
from splitserve.worker.ops.matrix import Matrix
from splitserve.worker.ops.mxfp4_weight import Mxfp4Weight
from splitserve.worker.ops.quantization import GROUP_COLUMNS, KeptForm

# Tensors that share one copy begin at multiples of this, enough alignment for every kernel's loads.
_ALIGNMENT = 16


class CudaDevice(Device):
    """Kernels and memory of one GPU.

    Work is enqueued, and only fetch() and synchronize() wait for it. Pinned memory comes from torch's
    allocator, which caches it and reuses it only when its copy is done.

    Args:
        ops: the kernel library.
        torch_device: the GPU, made current for the process; tests pass the CPU and emulated kernels.
        memory_utilization: share of the GPU's memory that this process may use, weights included.

    Attributes:
        longest_wait_s: longest wait for enqueued work, which may depend on other ranks.
    """

    name = "cuda"
    # 512 rows of 256k tokens, so that every decode step that is captured makes its logits at once.
    max_logits_bytes = 512 << 20

    def __init__(self, ops: CudaOps, torch_device: torch.device, memory_utilization: float = 0.9) -> None:
        self.cuda_ops = ops
        # The kernels only ever receive weights made by matrix().
        self.ops = cast("Kernels[Matrix]", ops)
        self.torch_device = torch_device
        self._memory_utilization = memory_utilization
        self.longest_wait_s = math.inf
        self._is_real = torch_device.type == "cuda"
        self._captures: Captures | None = None
        if self._is_real:
            torch.cuda.set_device(torch_device)
            self._captures = Captures(torch_device)
            self.side_stream = CudaSideStream(torch_device)
            # Keep partial sums in float32.
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

    @property
    def coded_dtypes(self) -> tuple[torch.dtype, ...]:
        """Those of 16 bits; none if thread blocks have too little shared memory for the products."""
        if self._is_real:
            limit = self.cuda_ops.shared_bytes_limit(self.torch_device.index or 0)
            if limit < self.cuda_ops.coded.shared_bytes:
                return ()
        return torch.bfloat16, torch.float16

    def matrix(
        self, shape: tuple[int, int], dtype: torch.dtype, form: KeptForm, num_experts: int = 1
    ) -> DenseWeight | Mxfp4Weight | CodedWeight:
        """Allocate a weight."""
        match form:
            case "plain":
                return DenseWeight(shape, dtype, self.torch_device)
            case "mxfp4":
                return Mxfp4Weight(shape, self.torch_device)
        return CodedWeight(shape, form, self.torch_device, num_experts)

    @property
    def free_bytes(self) -> int:
        """What this process may still take of its share of the GPU's memory."""
        if not self._is_real:
            return available_memory_bytes()
        return free_bytes(read_memory(self.torch_device), self._memory_utilization)

    def matrix_bytes(
        self, shape: tuple[int, int], dtype: torch.dtype, form: KeptForm, num_experts: int = 1
    ) -> int:
        """Return the bytes of all elements, or of their codes and scales."""
        match form:
            case "plain":
                return math.prod(shape) * dtype.itemsize
            case "mxfp4":
                return shape[0] * -(-shape[1] // GROUP_COLUMNS) * (GROUP_COLUMNS // 2 + 1)
        return coded_bytes(shape, form, num_experts)

    def written_bytes(self, shape: tuple[int, int], dtype: torch.dtype, form: KeptForm, num_rows: int) -> int:
        """Return the bytes of the elements of a weight of codes, where there are many rows."""
        if form in ("plain", "mxfp4", "w8a8") or num_rows <= self.cuda_ops.max_coded_rows:
            return 0
        return math.prod(shape) * dtype.itemsize

    def place(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Pack the tensors into pinned memory and copy it in one transfer."""
        ends = list(itertools.accumulate(-(-x.nbytes // _ALIGNMENT) * _ALIGNMENT for x in tensors))
        staging = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=self._is_real)
        spans = list(zip(tensors, [0, *ends], strict=False))
        # numpy copies a few bytes in a fifth of the time torch takes.
        target = staging.numpy()
        for source, begin in spans:
            target[begin : begin + source.nbytes] = source.numpy().reshape(-1).view(np.uint8)
        packed = staging.to(self.torch_device, non_blocking=True)
        return [packed[begin : begin + x.nbytes].view(x.dtype).view(x.shape) for x, begin in spans]

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Allocate memory from torch's allocator."""
        return torch.empty(shape, dtype=dtype, device=self.torch_device)

    def fetch(self, tensor: torch.Tensor) -> Array:
        """Copy to pinned memory, and wait for the copy with an event."""
        return self.fetch_later(tensor)()

    def fetch_later(self, tensor: torch.Tensor) -> Callable[[], Array]:
        """Enqueue the copy of fetch(); work enqueued later may overwrite the tensor.

        Returns:
            A function that waits for the copy and returns the values.
        """
        if not self._is_real:
            return tensor.clone().numpy
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        copied = torch.cuda.current_stream().record_event()

        def wait() -> Array:
            wait_for(copied, self.longest_wait_s)
            return host.numpy()

        return wait

    def histories(self, tokens: npt.NDArray[np.int32], rows: npt.NDArray[np.int32], width: int) -> Histories:
        """Copy the requested rows."""
        chosen = np.ascontiguousarray(tokens[rows, :width])
        order = np.arange(len(rows), dtype=np.int32)
        placed, placed_order = self.place([torch.from_numpy(chosen), torch.from_numpy(order)])
        return Histories(placed, placed_order)

    def host_pages(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return pinned memory, which is allocated at once."""
        return torch.zeros(shape, dtype=dtype, pin_memory=self._is_real)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self._is_real:
            torch.cuda.synchronize()

    def release_unused(self) -> None:
        """Empty torch's cache, which also undoes fragmentation."""
        if self._is_real:
            torch.cuda.empty_cache()

    def default_cache_bytes(self, run_largest_step: Callable[[], int]) -> int:
        """Return what the largest step leaves of this process's memory share."""
        if not self._is_real:
            return run_largest_step()
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        pool_bytes = run_largest_step()
        torch.cuda.empty_cache()
        return cache_bytes(read_memory(self.torch_device), self._memory_utilization, pool_bytes)

    def planned_cache_bytes(self, weights_bytes: int, activation_bytes: int) -> int:
        """Return what weights and activations will leave of this process's memory share."""
        return max(0, self.free_bytes - weights_bytes - activation_bytes)

    def capture(self, run: Callable[[], object]) -> Callable[[], object]:
        """Capture work, return a function that replays it; see Captures. The emulation captures nothing."""
        return self._captures.capture(run) if self._captures is not None else run

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability, such as (9, 0) for an H200; without a GPU, that of the emulation's headers."""
        return torch.cuda.get_device_capability(self.torch_device) if self._is_real else (9, 0)
