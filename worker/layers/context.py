"""What every layer of a model is built from."""

from __future__ import annotations

from typing import NamedTuple

from worker.attention.base import AttentionBackend
from worker.device.kernels import Kernels, Matrix
from worker.layers.parameter import WeightPlan
from worker.layers.workspace import Workspace


class LayerContext(NamedTuple):
    """Handed down to the layers' constructors.

    Attributes:
        plan: where layers declare their weights.
        workspace: where they keep activations.
        backend: what computes attention.
        ops: the device's kernels for all else.
    """

    plan: WeightPlan
    workspace: Workspace
    backend: AttentionBackend
    ops: Kernels[Matrix]
