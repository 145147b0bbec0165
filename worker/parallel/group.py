"""The ranks that compute one layer together: their sums, the logits of all, and how a step ends.

Each rank computes a partial sum of a row linear, receives those of all ranks, adds them in rank order in
float32 and rounds once. So all ranks hold the same bits, runs are reproducible, and a row's result does not
depend on its batch. An all-reduce guarantees none of this: its order of summation depends on the position in
the buffer and on the algorithm chosen for its size.
"""

from __future__ import annotations

from typing import Protocol

import torch


class StepAbandonedError(Exception):
    """Another rank has abandoned the step that this one computes."""


class RankGroup(Protocol):
    """Communication within a group of ranks; every rank must make the same calls in the same order.

    Attributes:
        rank: of this process within the group.
        size: how many there are.
        can_be_captured: exchanges can be part of a captured step, as custom or NCCL kernels can.
    """

    rank: int
    size: int
    can_be_captured: bool

    @property
    def generation(self) -> int:
        """Counts the buffers of exchanges that were made or replaced; while it stays, none has moved."""

    def sum_into(self, out: torch.Tensor, partial: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Write the sum of all ranks' partial sums, and a bias, to out.

        Args:
            out: [T, N], written alike on every rank.
            partial: [T, N] contiguous, float32 or the dtype of out.
            bias: [N], the same on every rank.

        Raises:
            RankLostError: another rank is gone or did not respond in time.
        """

    def gather_columns(self, out: torch.Tensor | None, columns: torch.Tensor, num_columns: int) -> None:
        """Put the columns of all ranks side by side on rank 0.

        Args:
            out: float32 [T, num_columns], written, on rank 0; None on the others.
            columns: float32 [T, n] contiguous, n the rank's share of num_columns.
            num_columns: of all ranks together.

        Raises:
            RankLostError: another rank is gone or did not respond in time.
        """

    def settle(self, values: torch.Tensor) -> None:
        """End a step: overwrite a tensor on the device, int32 [n], by that of rank 0.

        On a device that runs by itself it is enqueued: no host waits for another rank.

        Raises:
            RankLostError: another rank is gone or did not respond in time.
        """

    def abandon_step(self) -> bool:
        """Let all ranks drop a step before its settle(): in the others, exchanges raise StepAbandonedError.

        They must then call this too. Shared state is as it was after the previous step.

        Returns:
            False, and nothing done, where the others cannot be told.

        Raises:
            RankLostError: another rank is gone or did not respond in time.
        """
