"""The operation that adds adapters' deltas to a linear layer's outputs, on any device.

T: rows of a step, S: slots for adapters, R: most ranks of a slot, a multiple of 16; K, N: inputs and outputs
of the layer. Errors, dtypes and strides: see worker.ops.interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

# What the kernels take: most slots, and of a slot's ranks the most, in whole multiples of the other.
MAX_ADAPTERS: Final = 256
MAX_RANK: Final = 256
RANK_MULTIPLE: Final = 16
# Outputs that lie side by side.
PANEL_COLUMNS: Final = 64


class LoraWeights(NamedTuple):
    """What the adapters in memory change of one layer.

    The matrices of each slot are contiguous.

    Attributes:
        a: [S, K, R]; columns from an adapter's rank on are zeros.
        b: [S, ceil(N / 64), R, 64]: 64 outputs side by side, the last ones padded with zeros.
        scales: float32 [S].
        ranks: int32 [S]; 0 for an adapter that leaves the layer as it is.
    """

    a: Tensor
    b: Tensor
    scales: Tensor
    ranks: Tensor


def in_panels(b: Tensor) -> Tensor:
    """Return a matrix [R, N] as LoraWeights has it, [ceil(N / 64), R, 64]."""
    rank, columns = b.shape
    num_panels = -(-columns // PANEL_COLUMNS)
    padded = b.new_zeros(rank, num_panels * PANEL_COLUMNS)
    padded[:, :columns] = b
    return padded.view(rank, num_panels, PANEL_COLUMNS).transpose(0, 1).contiguous()


class LoraRows(NamedTuple):
    """The rows of a step, and memory that the operation may use.

    Attributes:
        slots: int32 [T], the adapter of each row, -1 for none.
        order: int32 [T], overwritten.
        inner: float32 [T, R], overwritten.
    """

    slots: Tensor
    order: Tensor
    inner: Tensor


class LoraOps:
    """Products with adapters; stateless.

    Args:
        library: a tvm_ffi.Module that exports the kernels.
    """

    def __init__(self, library: Any) -> None:
        self._lora = library.lora

    def add(self, out: Tensor, x: Tensor, weights: LoraWeights, rows: LoraRows) -> None:
        """Add scales[s] * x[t] @ A @ B of slot s to out[t] for s = slots[t], in float32, rounded once.

        Rows without an adapter, or whose adapter has rank 0 here, are neither read nor written.

        Args:
            out: [T, N], dtype of x or float32.
            x: [T, K].
            weights: in the dtype of x.
            rows: of the step. A slot outside of 0 to S - 1 is no adapter on a GPU.
        """
        self._lora(out, x, *weights, *rows)
