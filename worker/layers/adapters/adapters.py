"""The layers of a model that adapters may change, and what the rows of the current pass use."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

import torch

from splitserve.worker.device.base import Device
from splitserve.worker.device.workspace import Workspace
from splitserve.worker.layers.adapters.adapted_layer import AdaptedLayer, AdaptedShape, Delta
from splitserve.worker.ops.interface import Kernels
from splitserve.worker.ops.layers.lora import RANK_MULTIPLE, LoraRows
from splitserve.worker.ops.matrix import Matrix


class AdapterLimits(NamedTuple):
    """How many adapters are in memory at once, and the largest rank of one."""

    num_slots: int
    max_rank: int


class Adapters:
    """The layers of a model that adapters may change, and what rows of the current step use; single-threaded.

    Args:
        limits: of the adapters.
        ops: the device's kernels.
        workspace: of the model.

    Attributes:
        limits: as given.
        layers: by name of the module in the checkpoint; of this rank.
        names: of the layers of all ranks.
    """

    def __init__(self, limits: AdapterLimits, ops: Kernels[Matrix], workspace: Workspace) -> None:
        self.limits = limits
        self.layers: dict[str, AdaptedLayer] = {}
        self.names: Set[str] = self.layers.keys()
        self._padded_rank = -(-limits.max_rank // RANK_MULTIPLE) * RANK_MULTIPLE
        self._add = ops.lora.add
        self._pair = ops.lora.pair(workspace.dtype)
        self._workspace = workspace
        self._rows: LoraRows | None = None

    @property
    def slot_bytes(self) -> int:
        """Memory that an adapter takes on this rank."""
        elements = sum(layer.num_elements(self._padded_rank) for layer in self.layers.values())
        return elements * self._workspace.dtype.itemsize

    def declare(self, name: str, shape: AdaptedShape) -> AdaptedLayer:
        """Declare a layer of the checkpoint."""
        return self.layers.setdefault(name, AdaptedLayer(name, shape, self._pair))

    def allocate(self, dtype: torch.dtype, device: Device) -> None:
        """Reserve memory for the matrices of all layers and slots; on a CPU pages are backed as these fill.

        Those of a slot lie one behind the other, in the order in which a pass needs them.
        """
        sizes = [layer.num_elements(self._padded_rank) for layer in self.layers.values()]
        memory = device.pages((self.limits.num_slots, sum(sizes)), dtype)
        first = 0
        for layer, size in zip(self.layers.values(), sizes, strict=True):
            layer.take(memory[:, first : first + size], self._padded_rank)
            first += size

    def fill(self, slot: int, deltas: dict[str, Delta]) -> None:
        """Put an adapter into a slot, by the names of the layers, in place of the one before."""
        for name, layer in self.layers.items():
            layer.fill(slot, deltas.get(name))

    def begin(self, slots: torch.Tensor | None) -> None:
        """Begin a pass of the model.

        Args:
            slots: int32 [T], of each token, -1 for none; None if no token has an adapter.
        """
        if slots is None:
            self._rows = None
            return
        count, take = len(slots), self._workspace.take
        order = take("adapter_order", 1, count, torch.int32)[0]
        inner = take("adapter_inner", count, self._padded_rank, torch.float32)
        self._rows = LoraRows(slots, order, inner)

    def narrow(self, outputs: torch.Tensor) -> None:
        """Go on with some tokens of the pass, int32 or int64 [S]."""
        if self._rows is not None:
            self.begin(self._rows.slots[outputs])

    def add(self, out: torch.Tensor, x: torch.Tensor, parts: Sequence[tuple[AdaptedLayer, range]]) -> None:
        """Add the deltas of the rows' adapters to the outputs of a linear layer.

        Args:
            out: [T, N].
            x: [T, K].
            parts: layers of the checkpoint, and which outputs are theirs.
        """
        if self._rows is None:
            return
        for layer, columns in parts:
            mine = out if len(parts) == 1 else out[:, columns.start : columns.stop]
            self._add(mine, x, layer.weights, self._rows)
