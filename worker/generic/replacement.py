"""Puts our modules in the places of those that the transformers library built, and declares their weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from splitserve.worker.generic.modules import (
    KernelGelu,
    KernelMlp,
    KernelNorm,
    ModuleParameter,
)
from splitserve.worker.generic.probes import activation_of, gated_mlp_of, gelu_form, rms_norm_of
from splitserve.worker.generic.ranks.modules import make_embedding, make_head, make_linear
from splitserve.worker.generic.ranks.shares import LinearShares
from splitserve.worker.generic.tracing import Launcher
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.mlp import GatedMLP, MlpSpec
from splitserve.worker.layers.parameter import DenseParameter, PackedParameter, Part
from splitserve.worker.ops.matrix import VocabularyPart


class Replacement:
    """Replaces the modules of one model; call the methods in their order.

    Args:
        ctx: where weights are declared.
        model: on the meta device.
        stored: function from a parameter's name to that of its tensor in the checkpoint.
        launch: runs the kernels of our modules.
        shares: which part of a layer this rank holds.
    """

    def __init__(
        self,
        ctx: LayerContext,
        model: PreTrainedModel,
        stored: Callable[[str], str],
        launch: Launcher,
        shares: LinearShares,
    ) -> None:
        self._ctx = ctx
        self._shares = shares
        self._launch = launch
        self._model = model
        self._stored = stored

    def replace_vocabulary(self, *, has_head: bool, is_tied: bool, makes_logits: bool) -> None:
        """Replace embedding and output head.

        Args:
            has_head: logits are asked of the model.
            is_tied: the head's weight is the embedding's.
            makes_logits: this is the stage that makes them.
        """
        model, plan = self._model, self._ctx.plan
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        names = {module: name for name, module in model.named_modules()}
        shared: PackedParameter | None = None
        if type(embedding) is nn.Embedding:
            declare = plan.declare_head if has_head and is_tied else plan.declare_rows
            shape = _shape(embedding.weight)
            rows = self._ctx.share(shape[0])
            shared = declare(self._stored(f"{names[embedding]}.weight"), shape, rows)
            part = VocabularyPart(rows.start, shape[0])
            self._put(names[embedding], make_embedding(self._launch, self._ctx, shared, part))
        if head is None:
            return
        if not has_head or not makes_logits:
            self._put(names[head], nn.Identity())
            return
        source = names[embedding] if is_tied else names[head]
        weight = shared if is_tied else None
        shape = _shape(head.weight)
        rows = self._ctx.share(shape[0])
        if weight is None:
            weight = plan.declare_head(self._stored(f"{source}.weight"), shape, rows)
        bias = None
        if head.bias is not None:
            bias = self._vector(f"{names[head]}.bias", shape[0], rows)
        self._put(names[head], make_head(self._launch, self._ctx, weight, bias, shape[0]))

    def replace_layers(self) -> None:
        """Replace what our kernels compute; weights of all other modules stay with these."""
        for name, module in list(self._model.named_modules()):
            # It may be inside of what was replaced.
            if self._holds(name, module):
                replaced = self._made(name, module)
                if replaced is not None:
                    self._put(name, replaced)
        for name, module in self._model.named_modules():
            for attribute, parameter in module.named_parameters(recurse=False):
                full = f"{name}.{attribute}" if name else attribute
                made = ModuleParameter(module, attribute, self._stored(full), parameter.shape)
                self._ctx.plan.declare(made)

    def _made(self, name: str, module: nn.Module) -> nn.Module | None:
        # A module of a class made from one of these may compute something else.
        if type(module) is nn.Linear or type(module) is Conv1D:
            return self._linear(name, module)
        if type(module) is nn.LayerNorm:
            return self._layer_norm(name, module)
        if list(module.children()):
            return self._mlp(name, module)
        if list(module.parameters(recurse=False)):
            return self._rms_norm(name, module)
        form = gelu_form(activation_of(module))
        return None if form is None else KernelGelu(self._launch, self._ctx.ops, form)

    def _linear(self, name: str, module: nn.Linear | Conv1D) -> nn.Module:
        stored = tuple(module.weight.shape)
        is_transposed = not isinstance(module, nn.Linear)
        num_outputs, num_inputs = reversed(stored) if is_transposed else stored
        share = self._shares(name, (num_outputs, num_inputs))
        part = Part(self._stored(f"{name}.weight"), stored, 0, is_transposed, share.outputs, share.inputs)
        own = len(part.taken_outputs), len(part.taken_inputs)
        weight = self._ctx.plan.declare_linear(own, [part], may_change_order=True)
        bias = None if module.bias is None else self._vector(f"{name}.bias", num_outputs, share.outputs)
        return make_linear(self._launch, self._ctx, (weight, bias), (num_outputs, num_inputs), share)

    def _layer_norm(self, name: str, module: nn.LayerNorm) -> nn.Module | None:
        if len(module.normalized_shape) != 1 or not module.elementwise_affine:
            return None
        (size,) = module.normalized_shape
        weight, ops = self._vector(f"{name}.weight", size), self._ctx.ops
        if module.bias is None:
            dtype = self._ctx.workspace.dtype
            zeros = self._ctx.plan.declare_table(lambda: torch.zeros(size, dtype=dtype))
            return KernelNorm(
                self._launch,
                size,
                lambda out, x: ops.layer_norm(out, x, weight.tensor, zeros.tensor, module.eps),
            )
        bias = self._vector(f"{name}.bias", size)
        return KernelNorm(
            self._launch, size, lambda out, x: ops.layer_norm(out, x, weight.tensor, bias.tensor, module.eps)
        )

    def _rms_norm(self, name: str, module: nn.Module) -> nn.Module | None:
        kind = rms_norm_of(module)
        if kind is None:
            return None
        (parameter,) = module.parameters()
        size, ops = len(parameter), self._ctx.ops
        weight = self._vector(f"{name}.weight", size)
        return KernelNorm(
            self._launch, size, lambda out, x: ops.rms_norm(out, x, weight.tensor, kind.eps, kind.offset)
        )

    def _mlp(self, name: str, module: nn.Module) -> nn.Module | None:
        kind = gated_mlp_of(module)
        # The MLP of ours names its tensors itself.
        if kind is None or self._stored(f"{name}.{kind.outer}.weight") != f"{name}.{kind.outer}.weight":
            return None
        outer = getattr(module, kind.outer)
        self._shares.check_units(f"{name}.{kind.outer}", outer.in_features)
        spec = MlpSpec(
            outer.out_features, outer.in_features, kind.inner, kind.outer, bias=outer.bias is not None
        )
        return KernelMlp(self._launch, GatedMLP(self._ctx, name, spec, kind.activation))

    def _vector(self, name: str, size: int, taken: range | None = None) -> DenseParameter:
        part = Part(self._stored(name), (size,), outputs=taken)
        return self._ctx.plan.declare_vector(part.num_rows, [part])

    def _holds(self, name: str, module: nn.Module) -> bool:
        try:
            return self._model.get_submodule(name) is module
        except AttributeError:
            return False

    def _put(self, name: str, module: nn.Module) -> None:
        parent, _, attribute = name.rpartition(".")
        setattr(self._model.get_submodule(parent), attribute, module)


def _shape(weight: torch.Tensor) -> tuple[int, int]:
    rows, columns = weight.shape
    return rows, columns
