"""The stages of a pipeline, each of which holds some layers: how activations go from one to the next."""

from __future__ import annotations

from typing import Protocol

import torch


class Stage(Protocol):
    """One stage's place and its links; used by one thread.

    Attributes:
        index: of this stage.
        count: of all stages.
    """

    index: int
    count: int

    def send(self, activations: torch.Tensor) -> None:
        """Hand a step's activations to the next stage; returns before they have arrived.

        Args:
            activations: contiguous, of any shape; must not be written to afterwards.

        Raises:
            RankLostError: the next stage is gone, or has not taken those of an earlier step in time.
        """

    def receive(self, activations: torch.Tensor) -> None:
        """Wait for the activations of the same step from the previous stage.

        Args:
            activations: contiguous, of the shape and dtype that were sent; written.

        Raises:
            RankLostError: the previous stage is gone, or did not send in time.
        """
