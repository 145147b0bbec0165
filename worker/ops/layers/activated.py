"""Products that are activated on their way to memory, alone or as gates of others.

T: tokens, E: experts, S: slots of tokens, D: inputs, N: outputs, I: units. Errors, dtypes and strides: see
worker.ops.interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

from splitserve.worker.ops.matrix import MatrixT_contra

if TYPE_CHECKING:
    from torch import Tensor

    from splitserve.worker.ops.packed_weight import PackedWeight

# Units are computed so many at a time.
UNIT_MULTIPLE = 32


class ActivatedOps(Protocol[MatrixT_contra]):
    """The operations on a device that has them; stateless."""

    def gelu(
        self,
        out: Tensor,
        x: Tensor,
        weight: MatrixT_contra,
        bias: Tensor | None = None,
        approximate: Literal["none", "tanh"] = "none",
    ) -> None:
        """Write the GELU of x @ weight.T + bias to out, with the bits of a linear and the GELU after it.

        Args:
            out: [T, N], dtype of x.
            x: [T, D], dtype of the weight.
            weight: [N, D].
            bias: [N] or None, dtype of x.
            approximate: as in torch.nn.functional.gelu.
        """

    def gated(
        self,
        out: Tensor,
        x: Tensor,
        weight: MatrixT_contra,
        activation: str,
        bias: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> None:
        """Write activation(gate) * up of the products, with the bits of a linear and the activation after it.

        Args:
            out: [T, I], dtype of x; I is a multiple of UNIT_MULTIPLE. With starts, [S, I].
            x: [T, D], dtype of the weight. With starts, [S, D].
            weight: [2 * I, D]: gates, then ups. With starts, [E * 2 * I, D], made for E experts.
            activation: of the gates, "silu", "gelu" or "gelu_tanh".
            bias: [2 * I] or [E * 2 * I], dtype of x, or None.
            starts: of a Routing, see ExpertOps.linear; None for one matrix of all rows.
        """


class CpuActivatedOps:
    """Those of csrc/cpu.

    Args:
        library: a tvm_ffi.Module that exports the kernels.
    """

    def __init__(self, library: Any) -> None:
        self._linear = library.linear
        self._gated_linear = library.gated_linear

    def gelu(
        self,
        out: Tensor,
        x: Tensor,
        weight: PackedWeight,
        bias: Tensor | None = None,
        approximate: Literal["none", "tanh"] = "none",
    ) -> None:
        """See ActivatedOps.gelu."""
        cols, depth = weight.shape
        self._linear(out, x, weight.data, weight.scales, cols, depth, bias, approximate)

    def gated(
        self,
        out: Tensor,
        x: Tensor,
        weight: PackedWeight,
        activation: str,
        bias: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> None:
        """See ActivatedOps.gated."""
        rows, depth = weight.shape
        cols = rows // weight.num_experts
        self._gated_linear(out, x, weight.data, weight.scales, starts, cols, depth, bias, activation)
