"""Linear layers by role, so that only these classes know how layers are sharded over ranks.

A column linear is split along its outputs: each rank computes some heads or some MLP units. A row linear is
split along its inputs, and its results are summed over the ranks. Both halves of a decoder layer
are a column linear, an operation per head or unit, and a row linear.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch

from splitserve.worker.layers.adapters.adapted_layer import AdaptedLayer, AdaptedShape
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.parameter import DenseParameter, HeadPairs, PackedParameter, Part
from splitserve.worker.layers.weight_plan import WeightPlan
from splitserve.worker.ops.layers.activated import ActivatedOps
from splitserve.worker.ops.matrix import Matrix

Approximate = Literal["none", "tanh"]
"""As in torch.nn.functional.gelu."""


class Source(NamedTuple):
    """One linear layer of the checkpoint: its tensors are `name`.weight and `name`.bias [out_features].

    Attributes:
        taken: ranges of its outputs that this rank computes, in output order; () for all.
        pairs: see Part.
    """

    name: str
    out_features: int
    taken: tuple[range, ...] = ()
    pairs: HeadPairs | None = None


class LinearSpec(NamedTuple):
    """How the checkpoint stores a linear layer.

    Attributes:
        in_features: K of the whole layer.
        bias: whether there is a bias.
        transposed: weights are stored [K, N], as in GPT-2.
        inputs: input range that this rank holds; None for all.
    """

    in_features: int
    bias: bool = False
    transposed: bool = False
    inputs: range | None = None


class Gates(NamedTuple):
    """Products that activate gates on their way.

    Attributes:
        ops: the operation.
        activation: see ActivatedOps.gated.
    """

    ops: ActivatedOps[Matrix]
    activation: str


class Product:
    """x W^T + b with a weight that may keep its inputs in another order than the layer has them.

    Args:
        weight: [N, K].
    """

    def __init__(self, ctx: LayerContext, weight: PackedParameter) -> None:
        self._ops = ctx.ops
        self._workspace = ctx.workspace
        self._weight = weight

    def write(self, out: torch.Tensor, x: torch.Tensor, bias: DenseParameter | None = None) -> None:
        """Write it for the rows x [T, K] to out [T, N], which is float32 for a part of a sum."""
        self._ops.linear(out, self._in_order(x), self._weight.weight, None if bias is None else bias.tensor)

    def write_gelu(
        self, out: torch.Tensor, x: torch.Tensor, bias: DenseParameter | None, approximate: Approximate
    ) -> None:
        """Write its GELU for the rows x [T, K] to out [T, N]."""
        if self._ops.activated is None:
            self.write(out, x, bias)
            self._ops.gelu(out, out, approximate)
            return
        b = None if bias is None else bias.tensor
        self._ops.activated.gelu(out, self._in_order(x), self._weight.weight, b, approximate)

    def write_gated(
        self, out: torch.Tensor, x: torch.Tensor, gates: Gates, bias: DenseParameter | None
    ) -> None:
        """Write its second half, multiplied with the activated first one, to out [T, N / 2]."""
        b = None if bias is None else bias.tensor
        gates.ops.gated(out, self._in_order(x), self._weight.weight, gates.activation, b)

    def _in_order(self, x: torch.Tensor) -> torch.Tensor:
        """Return x with its columns where the weight has them."""
        order = self._weight.order
        if order is None:
            return x
        ordered = self._workspace.take_spaced("ordered_inputs", x.shape[0], len(order))
        self._ops.inputs.take(ordered, x, order)
        return ordered


class ColumnLinear:
    """x [T, K] -> [T, N], the outputs of one or more checkpoint layers side by side.

    Args:
        role: name of the output buffer in the workspace.
        sources: checkpoint layers in the order of their outputs; N is the sum of what is taken of them.
    """

    def __init__(self, ctx: LayerContext, role: str, sources: Sequence[Source], spec: LinearSpec) -> None:
        self._workspace = ctx.workspace
        self._role = role
        self._weight, self._bias = _declare(ctx.plan, sources, spec)
        self._product = Product(ctx, self._weight)
        self._ops = ctx.ops
        self._has_adapters = ctx.adapters is not None
        self._deltas = _Deltas(ctx, sources, spec)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T + b, and what adapters add, in this layer's buffer."""
        out = self._workspace.take_spaced(self._role, x.shape[0], self._weight.shape[0])
        self._product.write(out, x, self._bias)
        self._deltas.add(out, x)
        return out

    def gelu(self, x: torch.Tensor, approximate: Approximate) -> torch.Tensor:
        """Return the GELU of that, exact or in its tanh form, in this layer's buffer."""
        if self._has_adapters:
            out = self(x)
            self._ops.gelu(out, out, approximate)
            return out
        out = self._workspace.take_spaced(self._role, x.shape[0], self._weight.shape[0])
        self._product.write_gelu(out, x, self._bias, approximate)
        return out

    def write_gated(self, out: torch.Tensor, x: torch.Tensor, gates: Gates) -> None:
        """Write the second half of the outputs, multiplied with the activated first one, to out [T, N / 2].

        There must be no adapters.
        """
        self._product.write_gated(out, x, gates, self._bias)


class RowLinear:
    """x [T, K] -> [T, N], back to the residual width; x is this rank's shard, the result is the full sum.

    Args:
        role: name of the output buffer in the workspace.
        source: the checkpoint layer.
        spec: its inputs must be this rank's.
    """

    def __init__(self, ctx: LayerContext, role: str, source: Source, spec: LinearSpec) -> None:
        self._group = ctx.group
        self._workspace = ctx.workspace
        self._role = role
        self._weight, self._bias = _declare(ctx.plan, [source], spec)
        self._product = Product(ctx, self._weight)
        self._deltas = _Deltas(ctx, [source], spec)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T + b, and what adapters add, in this layer's buffer."""
        out = self._workspace.take(self._role, x.shape[0], self._weight.shape[0])
        self.write(out, x)
        return out

    def write(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """Write it to out [T, N]."""
        if self._group is None:
            self._product.write(out, x, self._bias)
            self._deltas.add(out, x)
        else:
            # Rounded once, after the sum, as on a single rank.
            bias = self._bias.tensor if self._bias else None
            self._group.sum_into(out, self.partial("partial_sums", x), bias)

    def partial(self, role: str, x: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of x W^T, float32, in the buffer of that role."""
        partial = self._workspace.take(role, x.shape[0], self._weight.shape[0], torch.float32)
        self._product.write(partial, x)
        self._deltas.add(partial, x)
        return partial


class WholeLinear:
    """x [T, K] -> [T, N] in the dtype that is asked for; every rank holds all of it, never quantised.

    Args:
        role: name of the output buffer in the workspace.
        name: of the checkpoint layer.
        shape: (N, K).
        bias: whether there is one.
    """

    def __init__(
        self, ctx: LayerContext, role: str, name: str, shape: tuple[int, int], *, bias: bool
    ) -> None:
        self._ops = ctx.ops
        self._workspace = ctx.workspace
        self._role = role
        self._weight = ctx.plan.declare_rows(f"{name}.weight", shape)
        self._bias = ctx.plan.declare_vector(shape[0], [Part(f"{name}.bias", shape[:1])]) if bias else None

    def __call__(self, x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return x W^T + b in this layer's buffer; dtype None is the activations'."""
        out = self._workspace.take(self._role, x.shape[0], self._weight.shape[0], dtype)
        self._ops.linear(out, x, self._weight.weight, self._bias.tensor if self._bias else None)
        return out


class _Deltas:
    """What adapters add to the outputs of one or more checkpoint layers side by side."""

    def __init__(self, ctx: LayerContext, sources: Sequence[Source], spec: LinearSpec) -> None:
        self._adapters = ctx.adapters
        self._parts: list[tuple[AdaptedLayer, range]] = []
        if ctx.adapters is None:
            return
        first = 0
        for name, out_features, taken, pairs in sources:
            shape = AdaptedShape(spec.in_features, out_features, spec.inputs, taken, pairs)
            columns = range(first, first + shape.num_outputs)
            self._parts.append((ctx.adapters.declare(name, shape), columns))
            first = columns.stop

    def add(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """Add them for the rows x [T, K] to out [T, N], which is float32 for a part of a sum."""
        if self._adapters is not None:
            self._adapters.add(out, x, self._parts)


def _declare(
    plan: WeightPlan, sources: Sequence[Source], spec: LinearSpec
) -> tuple[PackedParameter, DenseParameter | None]:
    weights: list[Part] = []
    biases: list[Part] = []
    row = 0
    for name, out_features, taken, pairs in sources:
        assert pairs is None or not spec.transposed, "pairs are rows of the checkpoint's tensor"
        shape = (spec.in_features, out_features) if spec.transposed else (out_features, spec.in_features)
        for outputs in taken or [range(out_features)]:
            weights.append(
                Part(f"{name}.weight", shape, row, spec.transposed, outputs, spec.inputs, pairs=pairs)
            )
            biases.append(Part(f"{name}.bias", (out_features,), row, outputs=outputs, pairs=pairs))
            row += len(outputs)
    num_inputs = spec.in_features if spec.inputs is None else len(spec.inputs)
    weight = plan.declare_linear((row, num_inputs), weights, may_change_order=True)
    return weight, plan.declare_vector(row, biases) if spec.bias else None
