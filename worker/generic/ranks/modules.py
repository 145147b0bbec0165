"""Linear layers and vocabularies of which each rank holds a part, as modules of the library's models."""

from __future__ import annotations

import torch
from torch import nn

from splitserve.worker.generic.modules import PackedEmbedding, PackedLinear, check_width
from splitserve.worker.generic.ranks.shares import LinearShare
from splitserve.worker.generic.tracing import Launcher
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.linear import Product
from splitserve.worker.layers.parameter import DenseParameter, PackedParameter
from splitserve.worker.layers.weight_plan import Table
from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.matrix import VocabularyPart
from splitserve.worker.parallel.group import RankGroup


class SummedLinear(nn.Module):
    """x [..., K] -> [..., N], of which each rank computes the part of its inputs.

    Args:
        launch: runs kernels.
        ctx: of the rank.
        weight: [N, n], of n inputs.
        bias: [N] or None.
        num_inputs: K.
        share: says which inputs are the rank's, and whether it is handed all of them.
    """

    def __init__(
        self,
        launch: Launcher,
        ctx: LayerContext,
        weight: PackedParameter,
        bias: DenseParameter | None,
        num_inputs: int,
        share: LinearShare,
    ) -> None:
        super().__init__()
        self._launch = launch
        self._workspace = ctx.workspace
        self._group = _group(ctx)
        self._product = Product(ctx, weight)
        self._bias = bias
        assert share.inputs is not None, "it is parted along its inputs"
        self._taken = slice(share.inputs.start, share.inputs.stop) if share.is_cut else slice(None)
        self._width = num_inputs if share.is_cut else len(share.inputs)
        self.out_features, self.in_features = weight.shape[0], num_inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T + b; rounded once, after the sum, as on a single rank."""
        check_width(x, self._width)
        return self._launch.rows(self._multiply, x, self.out_features)

    def _multiply(self, out: torch.Tensor, x: torch.Tensor) -> None:
        partial = self._workspace.take("partial_sums", len(x), self.out_features, torch.float32)
        self._product.write(partial, x[:, self._taken])
        self._group.sum_into(out, partial, self._bias.tensor if self._bias else None)


class GatheredLinear(nn.Module):
    """x [..., K] -> [..., N], of which each rank computes some outputs and gets all.

    Args:
        launch: runs kernels.
        ctx: of the rank.
        weight: [n, K], of n outputs.
        bias: [n] or None.
        num_outputs: N.
        taken: which outputs are the rank's.
    """

    def __init__(
        self,
        launch: Launcher,
        ctx: LayerContext,
        weight: PackedParameter,
        bias: DenseParameter | None,
        num_outputs: int,
        taken: range,
    ) -> None:
        super().__init__()
        self._launch = launch
        self._workspace = ctx.workspace
        self._group = _group(ctx)
        self._product = Product(ctx, weight)
        self._bias = bias
        self._taken = slice(taken.start, taken.stop)
        dtype = ctx.workspace.dtype
        self._zero: Table = ctx.plan.declare_table(lambda: torch.zeros(1, 1, dtype=dtype))
        self.out_features, self.in_features = num_outputs, weight.shape[1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T + b."""
        check_width(x, self.in_features)
        return self._launch.rows(self._multiply, x, self.out_features)

    def _multiply(self, out: torch.Tensor, x: torch.Tensor) -> None:
        own = self._workspace.take("own_outputs", *out.shape)
        ops.elementwise("copy", own, self._zero.tensor)
        self._product.write(own[:, self._taken], x, self._bias)
        # All but one of the ranks add zeros, which change nothing but the sign of a zero.
        self._group.sum_into(out, own)


class PartedEmbedding(PackedEmbedding):
    """Token ids [...] -> [..., H]; each rank holds some tokens' rows.

    Args:
        launch: runs kernels.
        ctx: of the rank.
        weight: [v, H], of v tokens.
        part: which tokens these are.
    """

    def __init__(
        self, launch: Launcher, ctx: LayerContext, weight: PackedParameter, part: VocabularyPart
    ) -> None:
        super().__init__(launch, ctx.ops, weight, ctx.workspace.dtype)
        self._workspace = ctx.workspace
        self._group = _group(ctx)
        self._part = part

    def _look_up(self, out: torch.Tensor, token_ids: torch.Tensor) -> None:
        own = self._workspace.take("own_rows", *out.shape)
        self._ops.embedding(own, token_ids, self._weight.weight, self._part)
        self._group.sum_into(out, own)


class PartedHead(nn.Module):
    """hidden [..., H] -> float32 logits [..., V] on the first rank; the others return those of their tokens.

    Args:
        launch: runs kernels.
        ctx: of the rank.
        weight: [v, H], of v tokens.
        bias: [v] or None.
        vocab_size: V.
    """

    def __init__(
        self,
        launch: Launcher,
        ctx: LayerContext,
        weight: PackedParameter,
        bias: DenseParameter | None,
        vocab_size: int,
    ) -> None:
        super().__init__()
        self._launch = launch
        self._ops = ctx.ops
        self._workspace = ctx.workspace
        self._group = _group(ctx)
        self._weight = weight
        self._bias = bias
        self._vocab_size = vocab_size
        self.out_features = vocab_size if ctx.is_first else weight.shape[0]
        self.in_features = weight.shape[1]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        check_width(hidden, self.in_features)
        return self._launch.rows(self._multiply, hidden, self.out_features, torch.float32)

    def _multiply(self, out: torch.Tensor, hidden: torch.Tensor) -> None:
        is_first = self._group.rank == 0
        own = out
        if is_first:
            own = self._workspace.take("own_logits", len(out), self._weight.shape[0], torch.float32)
        self._ops.linear(own, hidden, self._weight.weight, self._bias.tensor if self._bias else None)
        self._group.gather_columns(out if is_first else None, own, self._vocab_size)


def make_linear(
    launch: Launcher,
    ctx: LayerContext,
    weights: tuple[PackedParameter, DenseParameter | None],
    shape: tuple[int, int],
    share: LinearShare,
) -> nn.Module:
    """Return the module of a rank's share of a layer.

    Args:
        launch: runs kernels.
        ctx: of the rank.
        weights: matrix and bias, of the share.
        shape: (N, K) of the whole layer.
        share: the rank's.
    """
    weight, bias = weights
    if share.inputs is not None:
        return SummedLinear(launch, ctx, weight, bias, shape[1], share)
    if share.is_gathered:
        assert share.outputs is not None, "what is gathered was parted"
        return GatheredLinear(launch, ctx, weight, bias, shape[0], share.outputs)
    return PackedLinear(launch, ctx, weight, bias)


def make_embedding(
    launch: Launcher, ctx: LayerContext, weight: PackedParameter, part: VocabularyPart
) -> nn.Module:
    """Return the embedding of a rank, which holds these tokens' rows."""
    if ctx.group is None:
        return PackedEmbedding(launch, ctx.ops, weight, ctx.workspace.dtype)
    return PartedEmbedding(launch, ctx, weight, part)


def make_head(
    launch: Launcher,
    ctx: LayerContext,
    weight: PackedParameter,
    bias: DenseParameter | None,
    vocab_size: int,
) -> nn.Module:
    """Return the output head of a rank."""
    if ctx.group is None:
        return PackedLinear(launch, ctx, weight, bias, torch.float32)
    return PartedHead(launch, ctx, weight, bias, vocab_size)


def _group(ctx: LayerContext) -> RankGroup:
    assert ctx.group is not None, "there are several ranks"
    return ctx.group
