"""The operations of layers in which each token passes a few of many experts, on any device that has them.

T: tokens, E: experts, K: experts per token, S = T * K: slots, slot t * K + j being the j-th of token t; N, D:
outputs and inputs of an expert's matrix. Rows of slots are grouped by expert: the place of a slot is its row.
The choice is data, never looked at by the host. Errors, dtypes and strides: see worker.ops.interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from splitserve.worker.ops.matrix import MatrixT_contra

if TYPE_CHECKING:
    from torch import Tensor


class Routing(NamedTuple):
    """Which experts the tokens of a step pass.

    Attributes:
        weights: float32 [T, K], what the experts' outputs are multiplied with, the largest first.
        ids: int32 [T, K], the experts.
        places: int32 [S]: slots of one expert stay in their order.
        starts: int32 [E + 1]: the places of expert e are starts[e] to starts[e + 1].
    """

    weights: Tensor
    ids: Tensor
    places: Tensor
    starts: Tensor

    def of_experts(self, experts: range) -> Routing:
        """Return the same for a run of experts alone: rows of all others are left out."""
        return self._replace(starts=self.starts[experts.start : experts.stop + 1])


class GroupRule(NamedTuple):
    """How experts are chosen that are in groups: the best groups first, then the best experts of these.

    Attributes:
        adds_up: a token's weights are divided by their sum.
        num_groups: of as many experts each.
        num_chosen: groups per token; they hold at least K experts.
        is_sigmoid: an expert's score is the sigmoid of its logit; otherwise those of all are the softmax.
        counts_two: a group is judged by the sum of its two best scores; otherwise by the best.
        scaling: multiplies the weights, above 0.
    """

    adds_up: bool
    num_groups: int
    num_chosen: int
    is_sigmoid: bool
    counts_two: bool
    scaling: float


class ExpertOps(ABC, Generic[MatrixT_contra]):
    """Choice, products and weighted sum of experts; stateless.

    Args:
        library: a tvm_ffi.Module that exports the kernels.

    Attributes:
        multiplies_mxfp4: weights may be in MXFP4.
    """

    multiplies_mxfp4 = False

    def __init__(self, library: Any) -> None:
        self._route = library.route
        self._grouped_route = library.grouped_route
        self._spread_rows = library.spread_rows
        self._combine = library.combine_experts
        self._clamped_swiglu = library.clamped_swiglu

    def route(self, routing: Routing, logits: Tensor, adds_up: bool) -> None:
        """Choose the K experts with the largest logits for each token; among equals the lower numbers.

        Args:
            routing: contiguous, overwritten.
            logits: float32 [T, E], E at most 1024. A NaN is chosen first, and makes the weights NaN.
            adds_up: the weights are the softmax of the chosen logits; otherwise of all.
        """
        self._route(*routing, logits, adds_up)

    def grouped_route(
        self, routing: Routing, logits: Tensor, rule: GroupRule, bias: Tensor | None = None
    ) -> None:
        """Choose K experts for each token by their scores, in groups; of equals those of lower numbers.

        Args:
            routing: contiguous, overwritten; the weights are the scores of the chosen, the order is that of
                the choice.
            logits: float32 [T, E], E at most 1024. A NaN is chosen first, and makes its weight NaN.
            rule: of the choice and the weights.
            bias: float32 [E], added to the scores for the choice alone; None for none.
        """
        adds_up, *numbers = rule
        self._grouped_route(*routing, logits, adds_up, bias, *numbers)

    def spread_rows(self, out: Tensor, x: Tensor, routing: Routing) -> None:
        """Copy each token's row to the places of its slots, those of the routing's experts.

        Args:
            out: [S, D].
            x: [T, D].
            routing: of the step.
        """
        self._spread_rows(out, x, routing.places, routing.starts)

    @abstractmethod
    def linear(
        self, out: Tensor, x: Tensor, weight: MatrixT_contra, starts: Tensor, bias: Tensor | None = None
    ) -> None:
        """Multiply rows starts[e] to starts[e + 1] with expert e's matrix, as Kernels.linear does.

        Matrices of experts without rows are not read.

        Args:
            out: [S, N], dtype of x or float32.
            x: [S, D], dtype of the weight.
            weight: [E * N, D], made for E experts.
            starts: of a Routing.
            bias: [E * N], dtype of x, or None.
        """

    def clamped_swiglu(self, out: Tensor, x: Tensor, alpha: float, limit: float) -> None:
        """Write gate * sigmoid(alpha * gate) * (up + 1) to out, gates capped at limit and ups within +-limit.

        Args:
            out: [S, I].
            x: [S, 2 * I]: gate and up of each unit are neighbours.
            alpha: above 0.
            limit: above 0.
        """
        self._clamped_swiglu(out, x, alpha, limit)

    def combine(
        self,
        out: Tensor,
        y: Tensor,
        routing: Routing,
        shared: Tensor | None = None,
        gate: Tensor | None = None,
    ) -> None:
        """Write the weighted sums of the experts' outputs, and what all tokens get beside them.

        Sums are in float32, in the order of the weights, `shared` last, over the routing's experts.

        Args:
            out: [T, N], rounded once to its dtype.
            y: float32 [S, N], by places.
            routing: of the step.
            shared: float32 [T, N], or None.
            gate: float32 [T], `shared` is multiplied with its sigmoid; None for 1.
        """
        self._combine(out, y, routing.places, routing.weights, routing.starts, shared, gate)
