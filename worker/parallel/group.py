"""The ranks that compute one layer together: their sums, the logits of all, and how a step ends.

The ranks part every sum of a row linear among them. Each receives all partial sums and adds them in the order
of the ranks, in float32, and rounds once. So all ranks hold the same bits, a run repeats exactly, and a row's
result does not depend on the rows beside it; none of it holds of an all-reduce, whose order follows the place
in the buffer and the algorithm that fits its size.
"""

from __future__ import annotations

from typing import Protocol

import torch


class StepAbandonedError(Exception):
    """Another rank has abandoned the step that this one computes."""


class RankGroup(Protocol):
    """What layers and the runner ask of their ranks; every rank makes the same calls in the same order.

    Attributes:
        rank: of this process within the group.
        size: how many there are.
        can_be_captured: exchanges can be part of a recorded step, as kernels of our own or NCCL's are.
    """

    rank: int
    size: int
    can_be_captured: bool

    @property
    def generation(self) -> int:
        """Counts the buffers of exchanges that were made or replaced; while it stays, all lie in place."""

    def sum_into(self, out: torch.Tensor, partial: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Write the sum of all ranks' partial sums, and a bias, to out.

        Args:
            out: [T, N], written alike on every rank.
            partial: [T, N] contiguous, float32 or the dtype of out.
            bias: [N], the same on every rank.

        Raises:
            RankLostError: another rank is gone or does not take part in time.
        """

    def gather_columns(self, out: torch.Tensor | None, columns: torch.Tensor, num_columns: int) -> None:
        """Put the columns of all ranks side by side on rank 0.

        Args:
            out: float32 [T, num_columns], written, on rank 0; None on the others.
            columns: float32 [T, n] contiguous, n the rank's share of num_columns.
            num_columns: of all ranks together.

        Raises:
            RankLostError: another rank is gone or does not take part in time.
        """

    def settle(self, values: torch.Tensor) -> None:
        """End a step: overwrite a tensor on the device, int32 [n], by that of rank 0.

        On a device that runs by itself it is enqueued: no host waits for another rank.

        Raises:
            RankLostError: another rank is gone or does not take part in time.
        """

    def abandon_step(self) -> bool:
        """Let all ranks drop a step before its settle(): in the others, exchanges raise StepAbandonedError.

        These have to call this then, too. What the ranks share is as after the step before.

        Returns:
            False, and nothing done, where the others cannot be told.

        Raises:
            RankLostError: another rank is gone or does not take part in time.
        """
