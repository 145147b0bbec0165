"""The feed-forward half of a sparse layer: a router chooses a few of many gated MLPs for each token."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from splitserve.engine_core.checkpoint.config.model_config import ExpertConfig, ModelConfig
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.expert_parts import StoredExperts
from splitserve.worker.layers.linear import Gates, WholeLinear
from splitserve.worker.layers.mlp import GatedMLP, MlpSpec, gated_activation, gates_of
from splitserve.worker.layers.parameter import DenseParameter, PackedParameter, Part
from splitserve.worker.ops.layers.experts import GroupRule, Routing
from splitserve.worker.ops.quantization import WeightForm


class SparseMLP:
    """The weighted sum of the chosen experts' outputs, and the output of the expert that all tokens pass.

    Ranks hold the same units of every expert, as of a dense MLP, or under expert parallelism all units of
    some experts; all of them route all tokens.

    Args:
        config: of the model; it has experts.
        layer: name of the layer in the checkpoint.
    """

    def __init__(self, ctx: LayerContext, config: ModelConfig, layer: str) -> None:
        assert config.experts is not None
        experts, traits = config.experts, config.traits.experts
        hidden, name = config.hidden_size, f"{layer}.{traits.module}"
        self._ops = ctx.ops.experts
        self._workspace = ctx.workspace
        self._group = ctx.group
        self._router = Router(ctx, f"{name}.{traits.router}", hidden, experts, has_bias=traits.bias)
        self._activate = _activation(ctx, config)
        held, units = ctx.experts(experts.num_experts), ctx.expert_units(experts.inner_size)
        self._held, self._num_units = held, len(units)
        self._gates = gates_of(ctx, config.activation, len(units)) if experts.swiglu is None else None
        stored = StoredExperts(name, hidden, experts, traits, held)
        self._inner = ExpertLinear(
            ctx, experts, len(held), (2 * len(units), hidden), stored.inner(units), stored.inner_bias(units)
        )
        # Ranks that share an expert add a part of its sum each, and one of them what is not parted.
        is_whole = len(units) == experts.inner_size
        outer_bias = stored.outer_bias() if is_whole or ctx.is_first else []
        self._outer = ExpertLinear(
            ctx, experts, len(held), (hidden, len(units)), stored.outer(units), outer_bias
        )
        self._shared = SharedExpert(ctx, config, layer) if experts.shared_size else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map x [T, H] to [T, H] in the buffer of residual deltas."""
        shared, gate = self._shared(x) if self._shared is not None else (None, None)
        routing = self._router(x).of_experts(self._held)
        outputs = self._pass_experts(x, routing)
        out = self._workspace.take("delta", *x.shape)
        if self._group is None:
            self._ops.combine(out, outputs, routing, shared, gate)
            return out
        # Rounded once, after the sum, as on a single rank.
        partial = self._workspace.take("partial_sums", x.shape[0], x.shape[1], torch.float32)
        self._ops.combine(partial, outputs, routing, shared, gate)
        self._group.sum_into(out, partial)
        return out

    def _pass_experts(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        """Return what this rank's experts make of their tokens, float32 [T * K, H] by places."""
        count, hidden, starts = len(routing.places), x.shape[1], routing.starts
        rows = self._workspace.take_spaced("expert_rows", count, hidden)
        self._ops.spread_rows(rows, x, routing)
        activated = self._workspace.take_spaced("expert_activated", count, self._num_units)
        if self._gates is None:
            gate_up = self._workspace.take_spaced("expert_inner", count, 2 * self._num_units)
            self._inner(gate_up, rows, starts)
            self._activate(activated, gate_up)
        else:
            self._inner.write_gated(activated, rows, starts, self._gates)
        outputs = self._workspace.take("expert_outputs", count, hidden, torch.float32)
        self._outer(outputs, activated, starts)
        return outputs


class ExpertLinear:
    """A linear layer of each expert.

    Args:
        experts: of the model.
        count: how many of them this rank holds, E.
        shape: (N, K) of each.
        weights: parts of the matrices, one expert's after the other's.
        biases: parts of the biases, likewise; none if there are none.
    """

    def __init__(
        self,
        ctx: LayerContext,
        experts: ExpertConfig,
        count: int,
        shape: tuple[int, int],
        weights: list[Part],
        biases: list[Part],
    ) -> None:
        self._linear = ctx.ops.experts.linear
        # In other dtypes there are no such products.
        form: WeightForm | None = None
        multiplies_mxfp4 = ctx.ops.experts.multiplies_mxfp4 and ctx.workspace.dtype == torch.bfloat16
        if experts.is_mxfp4 and multiplies_mxfp4:
            form = "mxfp4"
        self._weight: PackedParameter = ctx.plan.declare_experts(count, shape, weights, form)
        self._bias: DenseParameter | None = None
        if biases:
            self._bias = ctx.plan.declare_vector(count * shape[0], biases)

    def __call__(self, out: torch.Tensor, x: torch.Tensor, starts: torch.Tensor) -> None:
        """Write the products of the rows starts[e] to starts[e + 1] of x with expert e to those of out."""
        bias = None if self._bias is None else self._bias.tensor
        self._linear(out, x, self._weight.weight, starts, bias)

    def write_gated(self, out: torch.Tensor, x: torch.Tensor, starts: torch.Tensor, gates: Gates) -> None:
        """Write the second half of the same, multiplied with the activated first one, to out [S, N / 2]."""
        bias = None if self._bias is None else self._bias.tensor
        gates.ops.gated(out, x, self._weight.weight, gates.activation, bias, starts)


def _activation(ctx: LayerContext, config: ModelConfig) -> Callable[[torch.Tensor, torch.Tensor], None]:
    assert config.experts is not None
    swiglu = config.experts.swiglu
    if swiglu is None:
        return gated_activation(ctx, config.activation)
    return partial(ctx.ops.experts.clamped_swiglu, alpha=swiglu.alpha, limit=swiglu.limit)


class Router:
    """Which experts a token passes, from float32 products with weights that are never quantised.

    Args:
        name: of the checkpoint's module.
        hidden_size: H.
        experts: their number, and the rule.
        has_bias: of the logits.
    """

    def __init__(
        self, ctx: LayerContext, name: str, hidden_size: int, experts: ExpertConfig, *, has_bias: bool
    ) -> None:
        self._ops = ctx.ops.experts
        self._workspace = ctx.workspace
        self._experts = experts
        self._rule = _group_rule(experts)
        self._bias: DenseParameter | None = None
        if experts.groups is not None and experts.groups.has_bias:
            part = Part(f"{name}.e_score_correction_bias", (experts.num_experts,))
            self._bias = ctx.plan.declare_vector(experts.num_experts, [part], torch.float32)
        shape = (experts.num_experts, hidden_size)
        self._logits = WholeLinear(ctx, "router_logits", name, shape, bias=has_bias)

    def __call__(self, x: torch.Tensor) -> Routing:
        """Return the experts of x [T, H], in buffers of this role."""
        take, count = self._workspace.take, x.shape[0]
        num_experts, num_chosen = self._experts.num_experts, self._experts.num_chosen
        logits = self._logits(x, torch.float32)
        routing = Routing(
            weights=take("expert_weights", count, num_chosen, torch.float32),
            ids=take("expert_ids", count, num_chosen, torch.int32),
            places=take("expert_places", 1, count * num_chosen, torch.int32)[0],
            starts=take("expert_starts", 1, num_experts + 1, torch.int32)[0],
        )
        if self._rule is None:
            self._ops.route(routing, logits, self._experts.adds_up)
        else:
            bias = None if self._bias is None else self._bias.tensor
            self._ops.grouped_route(routing, logits, self._rule, bias)
        return routing


def _group_rule(experts: ExpertConfig) -> GroupRule | None:
    groups = experts.groups
    if groups is None:
        return None
    numbers = (groups.num_groups, groups.num_chosen)
    return GroupRule(experts.adds_up, *numbers, groups.is_sigmoid, groups.counts_two, groups.scaling)


class SharedExpert:
    """A gated MLP that all tokens pass, and the gate of its output."""

    def __init__(self, ctx: LayerContext, config: ModelConfig, layer: str) -> None:
        assert config.experts is not None
        traits, hidden = config.traits.experts, config.hidden_size
        spec = MlpSpec(hidden, config.experts.shared_size, traits.shared_inner, traits.shared_outer)
        self._mlp = GatedMLP(ctx, f"{layer}.{traits.shared}", spec, config.activation)
        self._gate = None
        if traits.shared_gate:
            name = f"{layer}.{traits.module}.{traits.shared_gate}"
            self._gate = WholeLinear(ctx, "shared_gate", name, (1, hidden), bias=False)

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return this rank's part of the output, float32 [T, H], and the logits of its gate, float32 [T]."""
        output = self._mlp.partial("shared_output", x)
        if self._gate is None:
            return output, None
        return output, self._gate(x, torch.float32)[:, 0]
