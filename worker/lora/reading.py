"""An adapter's numbers as this rank needs them, read and checked without touching the model."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from splitserve.engine_core.checkpoint.adapter.files import Adapter, DeltaTensors
from splitserve.engine_core.checkpoint.weight_files import CheckpointTensor
from splitserve.engine_core.errors import ModelLoadError
from splitserve.worker.layers.adapters.adapted_layer import AdaptedLayer, Delta
from splitserve.worker.layers.adapters.adapters import Adapters
from splitserve.worker.weights.reading import read_whole


class ReadAdapter(NamedTuple):
    """An adapter that may be put into a slot.

    Attributes:
        digest: hex SHA-256 of its files.
        deltas: by name of the layer, those of this rank.
    """

    digest: str
    deltas: dict[str, Delta]


class AdapterReader:
    """Reads the adapters of one model; may be used by another thread than the model.

    Args:
        adapters: of the model.
        dtype: of the activations.
    """

    def __init__(self, adapters: Adapters, dtype: torch.dtype) -> None:
        self._layers = adapters.layers
        self._max_rank = adapters.limits.max_rank
        self._names = adapters.names
        self._dtype = dtype

    def read(self, directory: Path) -> ReadAdapter:
        """Read an adapter.

        Raises:
            ModelLoadError: names the file, and the tensor if one is at fault: it is damaged, holds a number
                that is not finite, or belongs to another model.
        """
        with Adapter.open(directory, self._max_rank) as adapter:
            # All shapes before any number.
            layers = {module: self._layer(module, delta) for module, delta in adapter.deltas.items()}
            found = {}
            for module, layer in layers.items():
                a, b, scale = adapter.deltas[module]
                numbers = _read(a), _read(b)
                if layer is not None:
                    found[layer.name] = layer.prepare(*numbers, scale, self._dtype)
            return ReadAdapter(adapter.digest(), found)

    def _layer(self, module: str, delta: DeltaTensors) -> AdaptedLayer | None:
        """Return the layer of a module; None if another pipeline stage has it."""
        path = delta.a.file.path
        if module not in self._names:
            raise ModelLoadError(
                f"{path}: {module} is no linear layer of this model that adapters can change"
                + (": experts are not among them" if "experts" in module else "")
            )
        layer = self._layers.get(module)
        if layer is not None:
            for tensor, dimension, size in (
                (delta.a, 1, layer.shape.in_features),
                (delta.b, 0, layer.shape.out_features),
            ):
                _check_size(tensor, dimension, size)
        return layer


def _check_size(tensor: CheckpointTensor, dimension: int, size: int) -> None:
    shape = tensor.entry.shape
    if shape[dimension] != size:
        what = "inputs" if dimension else "outputs"
        raise ModelLoadError(
            f"{tensor.file.path}: tensor {tensor.name!r} has shape {list(shape)}, but the layer of this "
            f"model has {size} {what}"
        )


def _read(tensor: CheckpointTensor) -> torch.Tensor:
    numbers = read_whole(tensor)
    if not torch.isfinite(numbers).all():
        raise ModelLoadError(f"{tensor.file.path}: tensor {tensor.name!r} holds a number that is not finite")
    return numbers
