"""Modules that compute with our kernels, in place of the ones that the transformers library built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import nn

from splitserve.worker.device.base import Device
from splitserve.worker.generic.tracing import Launcher
from splitserve.worker.layers.context import LayerContext
from splitserve.worker.layers.linear import Product
from splitserve.worker.layers.mlp import GatedMLP
from splitserve.worker.layers.parameter import DenseParameter, PackedParameter, Part, Window
from splitserve.worker.ops.interface import Kernels
from splitserve.worker.ops.matrix import Matrix


def check_width(x: torch.Tensor, size: int) -> None:
    """Refuse what has another width in a trial on the meta device; kernels say so themselves.

    Raises:
        ValueError: x is not [..., size].
    """
    if x.is_meta and x.shape[-1] != size:
        raise ValueError(f"a layer gets {x.shape[-1]} inputs instead of {size}")


class PackedLinear(nn.Module):
    """x [..., K] -> [..., N].

    Args:
        launch: runs kernels.
        ctx: of the model.
        weight: [N, K].
        bias: [N] or None.
        dtype: of the result; None for that of x.
    """

    def __init__(
        self,
        launch: Launcher,
        ctx: LayerContext,
        weight: PackedParameter,
        bias: DenseParameter | None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._launch = launch
        self._product = Product(ctx, weight)
        self._bias = bias
        self._dtype = dtype
        self.out_features, self.in_features = weight.shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T + b."""
        check_width(x, self.in_features)
        return self._launch.rows(self._multiply, x, self.out_features, self._dtype)

    def _multiply(self, out: torch.Tensor, x: torch.Tensor) -> None:
        self._product.write(out, x, self._bias)


class PackedEmbedding(nn.Module):
    """Token ids [...] -> [..., H].

    Args:
        launch: runs kernels.
        ops: of the device.
        weight: [V, H].
        dtype: of the result.
    """

    def __init__(
        self, launch: Launcher, ops: Kernels[Matrix], weight: PackedParameter, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self._launch = launch
        self._ops = ops
        self._weight = weight
        self._dtype = dtype

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of the tokens."""
        size = self._weight.shape[1]
        out = torch.empty((*token_ids.shape, size), dtype=self._dtype, device=token_ids.device)
        if not token_ids.is_meta:
            self._launch(self._look_up, out.view(-1, size), token_ids.reshape(-1))
        return out

    def _look_up(self, out: torch.Tensor, token_ids: torch.Tensor) -> None:
        self._ops.embedding(out, token_ids, self._weight.weight)


class KernelNorm(nn.Module):
    """A norm over the last dimension of x [..., H].

    Args:
        launch: runs kernels.
        size: H.
        norm: function of out and x, both [T, H].
    """

    def __init__(
        self, launch: Launcher, size: int, norm: Callable[[torch.Tensor, torch.Tensor], None]
    ) -> None:
        super().__init__()
        self._launch = launch
        self._size = size
        self._norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the norm of x."""
        check_width(x, self._size)
        return self._launch.rows(self._norm, x)


class KernelGelu(nn.Module):
    """Gaussian error linear unit."""

    def __init__(self, launch: Launcher, ops: Kernels[Matrix], approximate: Literal["none", "tanh"]) -> None:
        super().__init__()
        self._launch = launch
        self._ops = ops
        self._approximate = approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return gelu(x), x [..., I]."""
        return self._launch.rows(self._activate, x)

    def _activate(self, out: torch.Tensor, x: torch.Tensor) -> None:
        self._ops.gelu(out, x, self._approximate)


class KernelMlp(nn.Module):
    """A gated MLP of x [..., H]."""

    def __init__(self, launch: Launcher, mlp: GatedMLP) -> None:
        super().__init__()
        self._launch = launch
        self._mlp = mlp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return its output, like x; not in the MLP's own buffer, as modules may keep what they got."""
        return self._launch.rows(self._mlp.write, x)


class ModuleParameter(DenseParameter):
    """A parameter that stays with its module, in the shape that the module gave it.

    Args:
        module: whose parameter it is.
        attribute: its name there.
        name: in the checkpoint.
        shape: of one or two dimensions.
    """

    __slots__ = ("_attribute", "_module")

    def __init__(self, module: nn.Module, attribute: str, name: str, shape: Sequence[int]) -> None:
        super().__init__(tuple(shape), [Part(name, tuple(shape))])
        self._module = module
        self._attribute = attribute

    def allocate(self, dtype: torch.dtype, device: Device) -> None:
        """Allocate its memory, and let the module have it."""
        super().allocate(dtype, device)
        self._module._parameters[self._attribute] = nn.Parameter(self.tensor, requires_grad=False)

    def window(self, part: Part) -> Window:
        """Return all of it."""
        columns = range(self.shape[1]) if len(self.shape) == 2 else None
        return Window(part.taken_outputs, columns)
