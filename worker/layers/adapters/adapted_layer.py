"""One linear layer that adapters may change: what of it this rank holds, and the matrices of all slots.

An adapter is in a slot, of which there is a fixed number; the matrices of all slots of a layer lie side by
side, so that one kernel serves rows of different adapters, and a recorded step those that come later.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from splitserve.worker.layers.parameter import HeadPairs
from splitserve.worker.ops.layers.lora import PANEL_COLUMNS, LoraWeights, in_pairs, in_panels


class AdaptedShape(NamedTuple):
    """A linear layer of the checkpoint, and what this rank holds of it.

    Attributes:
        in_features, out_features: of the whole layer.
        inputs: input range that this rank holds; None for all.
        outputs: ranges of its outputs that this rank computes, in order; () for all.
        pairs: see HeadPairs.
    """

    in_features: int
    out_features: int
    inputs: range | None = None
    outputs: tuple[range, ...] = ()
    pairs: HeadPairs | None = None

    @property
    def num_inputs(self) -> int:
        """Inputs of this rank."""
        return self.in_features if self.inputs is None else len(self.inputs)

    @property
    def num_outputs(self) -> int:
        """Outputs of this rank."""
        return sum(map(len, self.outputs)) if self.outputs else self.out_features


class Delta(NamedTuple):
    """What an adapter adds to one layer, scale * x A^T B^T, as this rank needs it.

    Attributes:
        a: [ceil(K / pair), r, pair], of this rank's inputs, see LoraWeights.
        b: [ceil(N / 64), ceil(r / pair), 64, pair], of this rank's outputs.
        scale: a factor.
    """

    a: torch.Tensor
    b: torch.Tensor
    scale: float

    @property
    def rank(self) -> int:
        """Ranks of the adapter."""
        return self.a.shape[1]


class AdaptedLayer:
    """One linear layer of the checkpoint that adapters may change.

    Args:
        name: of its module in the checkpoint.
        shape: of the layer.
        pair: inputs, or ranks, that lie side by side, see LoraWeights.

    Attributes:
        name, shape: as given.
    """

    __slots__ = ("_pair", "_weights", "name", "shape")

    def __init__(self, name: str, shape: AdaptedShape, pair: int) -> None:
        self.name = name
        self.shape = shape
        self._pair = pair
        self._weights: LoraWeights | None = None

    @property
    def weights(self) -> LoraWeights:
        """The matrices of all slots; only available once allocated."""
        assert self._weights is not None, "the slots are not allocated"
        return self._weights

    def num_elements(self, max_rank: int) -> int:
        """Return how many elements both matrices of a slot take."""
        return (self._num_input_pairs * self._pair + self._num_panels * PANEL_COLUMNS) * max_rank

    def take(self, memory: torch.Tensor, max_rank: int) -> None:
        """Keep the matrices in memory [S, num_elements] whose rows may have any distance."""
        num_slots, place, pair = len(memory), memory.device, self._pair
        inputs = self._num_input_pairs * pair * max_rank
        a = memory[:, :inputs].view(num_slots, self._num_input_pairs, max_rank, pair)
        b = memory[:, inputs:].view(num_slots, self._num_panels, max_rank // pair, PANEL_COLUMNS, pair)
        scales = torch.zeros(num_slots, dtype=torch.float32, device=place)
        self._weights = LoraWeights(a, b, scales, torch.zeros(num_slots, dtype=torch.int32, device=place))

    @property
    def _num_input_pairs(self) -> int:
        return -(-self.shape.num_inputs // self._pair)

    @property
    def _num_panels(self) -> int:
        return -(-self.shape.num_outputs // PANEL_COLUMNS)

    def prepare(self, a: torch.Tensor, b: torch.Tensor, scale: float, dtype: torch.dtype) -> Delta:
        """Return a delta as this rank needs it.

        Args:
            a: [r, in_features] of the checkpoint.
            b: [out_features, r].
            scale: a factor.
            dtype: of the activations.
        """
        shape = self.shape
        if shape.inputs is not None:
            a = a[:, shape.inputs.start : shape.inputs.stop]
        if shape.outputs:
            b = torch.cat([b[taken.start : taken.stop] for taken in shape.outputs])
        if shape.pairs is not None:
            b = shape.pairs.parted(b)
        return Delta(in_pairs(a.t().to(dtype), self._pair), in_panels(b.t().to(dtype), self._pair), scale)

    def fill(self, slot: int, delta: Delta | None) -> None:
        """Put a delta into a slot in place of the one before; None: the adapter leaves the layer as it is."""
        weights = self.weights
        if delta is None:
            weights.ranks[slot] = 0
            return
        # Kernels multiply whole registers of ranks.
        weights.a[slot].zero_()
        weights.a[slot, :, : delta.rank].copy_(delta.a)
        weights.b[slot].zero_()
        weights.b[slot, :, : delta.b.shape[1]].copy_(delta.b)
        weights.scales[slot] = delta.scale
        weights.ranks[slot] = delta.rank
