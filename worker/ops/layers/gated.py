"""Products of which half are gates of the others, activated on their way to memory.

T: tokens, E: experts, S: slots of tokens, D: inputs, I: units. Errors, dtypes and strides: see
worker.ops.interface.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from splitserve.worker.ops.matrix import MatrixT_contra

if TYPE_CHECKING:
    from torch import Tensor

    from splitserve.worker.ops.packed_weight import PackedWeight

# Units are computed so many at a time.
UNIT_MULTIPLE = 32


class GatedOps(Protocol[MatrixT_contra]):
    """The operation on a device that has it; stateless."""

    def linear(
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


class CpuGatedOps:
    """The one of csrc/cpu.

    Args:
        library: a tvm_ffi.Module that exports the kernels.
    """

    def __init__(self, library: Any) -> None:
        self._gated_linear = library.gated_linear

    def linear(
        self,
        out: Tensor,
        x: Tensor,
        weight: PackedWeight,
        activation: str,
        bias: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> None:
        """See GatedOps.linear."""
        rows, depth = weight.shape
        cols = rows // weight.num_experts
        self._gated_linear(out, x, weight.data, weight.scales, starts, cols, depth, bias, activation)
