"""The operation that puts a layer's inputs into the order in which its weight keeps them.

T: tokens, K: inputs. Errors, dtypes and strides: see worker.ops.interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from torch import Tensor


class InputOps(Protocol):
    """It, on one device; stateless."""

    def take(self, out: Tensor, x: Tensor, order: Tensor) -> None:
        """Copy columns: out[t, k] = x[t, order[k]], or 0 where the order says -1.

        Args:
            out: [T, K], dtype of x, elsewhere in memory.
            x: [T, any number of columns].
            order: int32 [K], columns of x, or -1.
        """


class CpuInputOps:
    """The one of csrc/cpu.

    Args:
        library: a tvm_ffi.Module that exports the kernels.
    """

    def __init__(self, library: Any) -> None:
        self._take_columns = library.take_columns

    def take(self, out: Tensor, x: Tensor, order: Tensor) -> None:
        """See InputOps.take."""
        self._take_columns(out, x, order)


class TorchInputOps:
    """Torch's, whose kernels a GPU records like ours."""

    def take(self, out: Tensor, x: Tensor, order: Tensor) -> None:
        """See InputOps.take."""
        torch.index_select(x, 1, order.clamp_min(0), out=out)
        out.masked_fill_(order < 0, 0)
