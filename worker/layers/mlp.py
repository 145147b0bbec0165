"""The feed-forward half of a decoder layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.linear import Approximate, ColumnLinear, Gates, LinearSpec, RowLinear, Source
from splitserve.worker.ops.layers.activated import UNIT_MULTIPLE
from splitserve.worker.parallel.shares import scaled


class MlpSpec(NamedTuple):
    """Sizes of an MLP, and how the checkpoint stores it.

    Attributes:
        hidden_size, inner_size: its widths.
        inner: names of the layers into the inner width; gate and up may be one.
        outer: name of the layer back.
        bias: all of them have one.
        transposed: weights are stored [K, N], as in GPT-2.
    """

    hidden_size: int
    inner_size: int
    inner: tuple[str, ...] = ("gate_proj", "up_proj")
    outer: str = "down_proj"
    bias: bool = False
    transposed: bool = False


class GatedMLP:
    """down(activation(gate(x)) * up(x)), gate and up in one matrix.

    Args:
        name: of the checkpoint's module.
        spec: `inner` names gate and up, or a layer whose outputs are both.
        activation: "silu", "gelu" or "gelu_tanh".
    """

    def __init__(self, ctx: LayerContext, name: str, spec: MlpSpec, activation: str) -> None:
        self._activate = gated_activation(ctx, activation)
        self._workspace = ctx.workspace
        units = ctx.share(spec.inner_size)
        self._num_units = len(units)
        # What adapters add comes before the activation.
        self._gates = gates_of(ctx, activation, len(units)) if ctx.adapters is None else None
        if len(spec.inner) == 1:
            taken = (units, scaled(units, 1, spec.inner_size))
            sources = [Source(f"{name}.{spec.inner[0]}", 2 * spec.inner_size, taken)]
        else:
            sources = [Source(f"{name}.{part}", spec.inner_size, (units,)) for part in spec.inner]
        self._gate_up = ColumnLinear(ctx, "mlp_inner", sources, LinearSpec(spec.hidden_size, spec.bias))
        outer = Source(f"{name}.{spec.outer}", spec.hidden_size)
        self._down = RowLinear(ctx, "delta", outer, LinearSpec(spec.inner_size, spec.bias, inputs=units))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map x [T, H] to [T, H] in the buffer of residual deltas."""
        return self._down(self._units(x))

    def write(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """Map x [T, H] to out [T, H]."""
        self._down.write(out, self._units(x))

    def partial(self, role: str, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the output, float32 [T, H], in the buffer of that role."""
        return self._down.partial(role, self._units(x))

    def _units(self, x: torch.Tensor) -> torch.Tensor:
        activated = self._workspace.take_spaced("mlp_activated", x.shape[0], self._num_units)
        if self._gates is None:
            self._activate(activated, self._gate_up(x))
        else:
            self._gate_up.write_gated(activated, x, self._gates)
        return activated


def gates_of(ctx: LayerContext, activation: str, num_units: int) -> Gates | None:
    """Return the products that activate so many gates on their way; None where there are none."""
    ops = ctx.ops.activated
    return None if ops is None or num_units % UNIT_MULTIPLE else Gates(ops, activation)


def gated_activation(ctx: LayerContext, name: str) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Return the operation that multiplies activated gates with the rest: "silu", "gelu" or "gelu_tanh"."""
    operations: dict[str, Callable[[torch.Tensor, torch.Tensor], None]] = {
        "silu": ctx.ops.silu_and_mul,
        "gelu": partial(ctx.ops.gelu_and_mul, approximate="none"),
        "gelu_tanh": ctx.ops.gelu_and_mul,
    }
    return operations[name]


class PlainMLP:
    """down(gelu(up(x))).

    Args:
        name: of the checkpoint's module.
        spec: `inner` names one layer.
        activation: "gelu" or "gelu_tanh".
    """

    def __init__(self, ctx: LayerContext, name: str, spec: MlpSpec, activation: str) -> None:
        units = ctx.share(spec.inner_size)
        self._approximate: Approximate = "tanh" if activation == "gelu_tanh" else "none"
        (up,) = spec.inner
        inner = Source(f"{name}.{up}", spec.inner_size, (units,))
        outer = Source(f"{name}.{spec.outer}", spec.hidden_size)
        stored = LinearSpec(spec.hidden_size, spec.bias, spec.transposed)
        behind = stored._replace(in_features=spec.inner_size, inputs=units)
        self._up = ColumnLinear(ctx, "mlp_inner", [inner], stored)
        self._down = RowLinear(ctx, "delta", outer, behind)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map x [T, H] to [T, H] in the buffer of residual deltas."""
        return self._down(self._up.gelu(x, self._approximate))
