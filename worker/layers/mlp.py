"""The feed-forward half of a decoder layer."""

from __future__ import annotations

from typing import Literal

import torch

from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.linear import ColumnLinear, LinearSpec, RowLinear, Source


class GatedMLP:
    """down(silu(gate(x)) * up(x)), gate and up in one matrix.

    Args:
        name: its checkpoint layers are `name`.gate_proj, .up_proj and .down_proj.
    """

    def __init__(self, ctx: LayerContext, name: str, hidden_size: int, inner_size: int, bias: bool) -> None:
        self._ops = ctx.ops
        self._workspace = ctx.workspace
        units = ctx.share(inner_size)
        self._num_units = len(units)
        sources = [Source(f"{name}.{part}_proj", inner_size, (units,)) for part in ("gate", "up")]
        self._gate_up = ColumnLinear(ctx, "mlp_inner", sources, LinearSpec(hidden_size, bias))
        outer = Source(f"{name}.down_proj", hidden_size)
        self._down = RowLinear(ctx, "delta", outer, LinearSpec(inner_size, bias, inputs=units))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map x [T, H] to [T, H] in the buffer of residual deltas."""
        gate_up = self._gate_up(x)
        activated = self._workspace.take_spaced("mlp_activated", x.shape[0], self._num_units)
        self._ops.silu_and_mul(activated, gate_up)
        return self._down(activated)


class GeluMLP:
    """GPT-2's c_proj(gelu(c_fc(x))), weights stored transposed.

    Args:
        name: its checkpoint layers are `name`.c_fc and .c_proj.
        approximate: "tanh" or "none".
    """

    def __init__(
        self,
        ctx: LayerContext,
        name: str,
        hidden_size: int,
        inner_size: int,
        approximate: Literal["none", "tanh"],
    ) -> None:
        self._ops = ctx.ops
        self._workspace = ctx.workspace
        units = ctx.share(inner_size)
        self._num_units = len(units)
        self._approximate = approximate
        inner, outer = Source(f"{name}.c_fc", inner_size, (units,)), Source(f"{name}.c_proj", hidden_size)
        self._up = ColumnLinear(ctx, "mlp_inner", [inner], LinearSpec(hidden_size, True, True))
        self._down = RowLinear(ctx, "delta", outer, LinearSpec(inner_size, True, True, units))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map x [T, H] to [T, H] in the buffer of residual deltas."""
        inner = self._up(x)
        activated = self._workspace.take_spaced("mlp_activated", x.shape[0], self._num_units)
        self._ops.gelu(activated, inner, self._approximate)
        return self._down(activated)
