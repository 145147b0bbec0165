"""A linear layer that a pooled vector goes through, as sentence-transformers' Dense module; in float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from splitserve.engine_core.checkpoint.config.model_config import ModelConfig
from splitserve.engine_core.checkpoint.pooling import Dense, Pooling
from splitserve.engine_core.errors import ModelLoadError
from splitserve.worker.device.base import Device
from splitserve.worker.layers.parameter import DenseParameter, PackedParameter, Part
from splitserve.worker.layers.weight_plan import WeightPlan
from splitserve.worker.weights.loading import Loader


class DenseLayer:
    """One layer; its weights are declared and not allocated.

    Args:
        plan: of this layer alone.
        spec: its sizes.
        device: computes it.
    """

    def __init__(self, plan: WeightPlan, spec: Dense, device: Device) -> None:
        self._ops = device.ops
        self._is_tanh = spec.is_tanh
        shape = (spec.out_features, spec.in_features)
        self._weight: PackedParameter = plan.declare_linear(shape, [Part("linear.weight", shape)])
        self._bias: DenseParameter | None = None
        if spec.has_bias:
            self._bias = plan.declare_vector(shape[0], [Part("linear.bias", shape[:1])])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map float32 [n, in_features] to float32 [n, out_features]."""
        out = torch.empty(x.shape[0], self._weight.shape[0], dtype=torch.float32, device=x.device)
        self._ops.linear(out, x, self._weight.weight, self._bias.tensor if self._bias else None)
        if self._is_tanh:
            # The same as tanh; torch's may give an element other bits at another place.
            self._ops.soft_cap(out, out, 1.0)
        return out


def load_dense(pooling: Pooling, config: ModelConfig, device: Device, loader: Loader) -> Sequence[DenseLayer]:
    """Load the layers behind a model's pooling.

    Args:
        pooling: names them.
        config: of the model.
        device: where they compute.
        loader: fills their weights.

    Raises:
        ModelLoadError: names the file whose sizes or tensors do not fit.
    """
    layers, size = [], config.hidden_size
    for spec in pooling.dense:
        if spec.in_features != size:
            raise ModelLoadError(
                f"{spec.folder / 'config.json'}: in_features must be {size}, the size of what it reads, "
                f"got {spec.in_features}"
            )
        plan = WeightPlan()
        layers.append(DenseLayer(plan, spec, device))
        loader(spec.folder, plan, torch.float32, device, lambda loaded_bytes, total_bytes: None)
        size = spec.out_features
    return layers
