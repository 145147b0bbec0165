"""The interface of the device a worker computes on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from splitserve.worker.ops.interface import Kernels
from splitserve.worker.ops.matrix import Matrix
from splitserve.worker.ops.quantization import KeptForm

# Has the dtype of the tensor it comes from.
Array = npt.NDArray[Any]


class Histories(NamedTuple):
    """Token histories of some rows of the batch, in memory that the device's kernels can read.

    Attributes:
        token_ids: int32 [any, L].
        rows: int32 [P], the row of token_ids for each requested row.
    """

    token_ids: torch.Tensor
    rows: torch.Tensor


class SideStream(Protocol):
    """Runs work concurrently with the steps, one piece after the other; single-threaded."""

    def run(self, pieces: Iterable[Callable[[], None]]) -> list[Callable[[], None]]:
        """Enqueue work that begins once all work enqueued so far, by steps and on this stream, is done.

        Args:
            pieces: each enqueues kernels. Keep their memory alive until the steps have waited for them:
                torch's allocator tracks the steps' stream only.

        Returns:
            For each piece a function that makes later work of the steps wait for it, and for those before it.
        """


class Device(ABC):
    """Kernels, memory and copies of one device; single-threaded.

    Tensors it returns are valid until the end of the current step, except matrices and host memory.

    Attributes:
        name: "cpu" or "cuda".
        torch_device: where weights, activations and the KV cache live.
        ops: its operations.
        side_stream: for copies concurrent with the steps; None on a synchronous device.
        max_logits_bytes: of logits at once, the largest activation; a step of more rows makes them in turns.
    """

    name: str
    torch_device: torch.device
    ops: Kernels[Matrix]
    side_stream: SideStream | None = None
    max_logits_bytes: int = 128 << 20

    @property
    @abstractmethod
    def coded_dtypes(self) -> tuple[torch.dtype, ...]:
        """Of activations that are multiplied with weights of codes."""

    @property
    def multiplies_byte_groups(self) -> bool:
        """Whether codes of 4 bits in groups are multiplied with activations of int8."""
        return False

    @property
    @abstractmethod
    def free_bytes(self) -> int:
        """Memory that this rank may take for weights, KV cache and activations."""

    @abstractmethod
    def matrix_bytes(
        self, shape: tuple[int, int], dtype: torch.dtype, form: KeptForm, num_experts: int = 1
    ) -> int:
        """Return what a weight would take, see matrix()."""

    def written_bytes(self, shape: tuple[int, int], dtype: torch.dtype, form: KeptForm, num_rows: int) -> int:
        """Return what a product of so many rows takes to write a weight out, 0 where it is read as it is."""
        return 0

    @abstractmethod
    def matrix(
        self, shape: tuple[int, int], dtype: torch.dtype, form: KeptForm, num_experts: int = 1
    ) -> Matrix:
        """Allocate a weight, to be filled later, for activations of this dtype.

        Args:
            shape: (N, K).
            dtype: of the activations.
            form: in which it is kept.
            num_experts: it holds the matrices of so many experts below each other.

        Raises:
            OSError, RuntimeError: there is not enough memory.
        """

    @abstractmethod
    def place(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Copy contiguous host tensors to the device in one transfer.

        The caller must not change them before the step ends.
        """

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return uninitialised memory that kernels write and fetch() reads."""

    @abstractmethod
    def fetch(self, tensor: torch.Tensor) -> Array:
        """Wait for the work enqueued so far, and return a tensor's values on the host."""

    @abstractmethod
    def histories(self, tokens: npt.NDArray[np.int32], rows: npt.NDArray[np.int32], width: int) -> Histories:
        """Make the first `width` tokens of some rows readable by kernels.

        Args:
            tokens: [max_num_seqs, L], the batch's token array.
            rows: [P], rows of the batch.
            width: at most L.
        """

    def pages(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return new memory of the device; where that is possible, taken only as it is first written."""
        return self.empty(shape, dtype)

    @abstractmethod
    def host_pages(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return zeroed host memory that move_blocks can access.

        Raises:
            OSError, RuntimeError: there is not enough memory.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all work is done, for example before reading a clock."""

    @abstractmethod
    def release_unused(self) -> None:
        """Release memory kept for reuse, after a step has run out of memory."""

    @abstractmethod
    def planned_cache_bytes(self, weights_bytes: int, activation_bytes: int) -> int:
        """Return what default_cache_bytes() will about be, before the weights are loaded."""

    @abstractmethod
    def default_cache_bytes(self, run_largest_step: Callable[[], int]) -> int:
        """Return the default KV cache size in bytes; called once the weights are loaded.

        Args:
            run_largest_step: runs a step of the largest possible size, and returns the bytes of the temporary
                KV cache it used.
        """
