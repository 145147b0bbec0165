"""What the worker asks of the device it computes on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from splitserve.worker.ops.interface import Kernels
from splitserve.worker.ops.matrix import Matrix
from splitserve.worker.ops.quantization import WeightForm

# Of the dtype of the tensor it comes from.
Array = npt.NDArray[Any]


class Histories(NamedTuple):
    """Tokens of some rows of the batch, where the device's kernels read them.

    Attributes:
        token_ids: int32 [any, L].
        rows: int32 [P], the row of token_ids that belongs to each row asked for.
    """

    token_ids: torch.Tensor
    rows: torch.Tensor


class SideStream(Protocol):
    """Does work beside that of the steps, one piece after the other; one thread."""

    def run(self, pieces: Iterable[Callable[[], None]]) -> list[Callable[[], None]]:
        """Enqueue work that begins once all is done that the steps and this stream were given so far.

        Args:
            pieces: each enqueues kernels. Their memory lives on until the steps have waited for them: torch's
                allocator knows of the steps' stream alone.

        Returns:
            For each piece: lets what the steps enqueue from then on wait for it, and so for those before it.
        """


class Device(ABC):
    """Kernels, memory and copies of one device; one thread.

    What it hands out is valid until the end of the step that asked for it, except matrices and host memory.

    Attributes:
        name: "cpu" or "cuda".
        torch_device: where weights, activations and the KV cache live.
        ops: its operations.
        side_stream: for copies beside the steps; None where work is done when it has been called.
    """

    name: str
    torch_device: torch.device
    ops: Kernels[Matrix]
    side_stream: SideStream | None = None

    @abstractmethod
    def matrix(self, shape: tuple[int, int], dtype: torch.dtype, form: WeightForm) -> Matrix:
        """Make a weight that is still to be filled, for activations of this dtype.

        Raises:
            OSError, RuntimeError: the memory is not there.
        """

    @abstractmethod
    def place(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the values of contiguous tensors of the host on the device, copied together.

        Nobody changes them before the step's end.
        """

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return memory of undefined content that kernels write and fetch() reads."""

    @abstractmethod
    def fetch(self, tensor: torch.Tensor) -> Array:
        """Wait until the work enqueued so far is done, and return a tensor's values on the host."""

    @abstractmethod
    def histories(self, tokens: npt.NDArray[np.int32], rows: npt.NDArray[np.int32], width: int) -> Histories:
        """Let kernels read the first `width` tokens of some rows.

        Args:
            tokens: [max_num_seqs, L], the batch's own.
            rows: [P].
            width: at most L.
        """

    @abstractmethod
    def host_pages(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return zeros in the host's memory that move_blocks reaches.

        Raises:
            OSError, RuntimeError: the memory is not there.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all work is done, as timings have to."""

    @abstractmethod
    def release_unused(self) -> None:
        """Give back memory that is kept for reuse, after a step that found none."""

    @abstractmethod
    def default_cache_bytes(self, run_largest_step: Callable[[], int]) -> int:
        """Memory to offer to the KV cache when no size is configured; asked once the weights are there.

        Args:
            run_largest_step: runs a step as large as any may be, and returns the bytes of the KV cache that
                it made for that and dropped again.
        """
