"""The operation that adds adapters' deltas to a linear layer's outputs, on any device.

T: rows of a step, S: slots for adapters, R: most ranks of a slot, a multiple of 16; K, N: inputs and outputs
of the layer. Errors, dtypes and strides: see worker.ops.interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

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

    The matrices of each slot are contiguous. Behind the last input, output or rank of an adapter are zeros.

    Attributes:
        a: [S, ceil(K / pair), R, pair], see LoraOps.pair.
        b: [S, ceil(N / 64), R / pair, 64, pair]: 64 outputs side by side.
        scales: float32 [S].
        ranks: int32 [S]; 0 for an adapter that leaves the layer as it is.
    """

    a: Tensor
    b: Tensor
    scales: Tensor
    ranks: Tensor


def in_pairs(a: Tensor, pair: int) -> Tensor:
    """Return a matrix [K, R] as LoraWeights has it, [ceil(K / pair), R, pair]."""
    depth, rank = a.shape
    padded = a.new_zeros(-(-depth // pair) * pair, rank)
    padded[:depth] = a
    return padded.view(-1, pair, rank).transpose(1, 2).contiguous()


def in_panels(b: Tensor, pair: int) -> Tensor:
    """Return a matrix [R, N] as LoraWeights has it, [ceil(N / 64), ceil(R / pair), 64, pair]."""
    rank, columns = b.shape
    num_pairs, num_panels = -(-rank // pair), -(-columns // PANEL_COLUMNS)
    padded = b.new_zeros(num_pairs * pair, num_panels * PANEL_COLUMNS)
    padded[:rank, :columns] = b
    return padded.view(num_pairs, pair, num_panels, PANEL_COLUMNS).permute(2, 0, 3, 1).contiguous()


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
        has_pairs: whether these read bfloat16 in pairs.
    """

    def __init__(self, library: Any, *, has_pairs: bool) -> None:
        self._lora = library.lora
        self._has_pairs = has_pairs

    def pair(self, dtype: torch.dtype) -> int:
        """Return how many inputs or ranks lie side by side in matrices of that dtype."""
        return 2 if self._has_pairs and dtype == torch.bfloat16 else 1

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
