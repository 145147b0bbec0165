"""What the model runner asks of recorded decode steps, whatever the device records them with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from engine_core.ipc.worker_messages import ModelRunnerOutput, SchedulerOutput
from worker.input_batch import Int32, StepInputs


class StepGraph(Protocol):
    """A decode step that has just run the model; draw() or inputs() end it."""

    @property
    def rows(self) -> Int32:
        """[R], those of the step."""

    @property
    def hidden(self) -> torch.Tensor:
        """[R, H] final hidden states, in the model's buffer."""

    @property
    def needs_sampler(self) -> bool:
        """Whether a row has a feature, or does not draw: then inputs() is sampled eagerly."""

    def inputs(self) -> StepInputs:
        """The step, as InputBatch.prepare returns it."""

    def draw(self) -> Int32 | Callable[[], Int32]:
        """Sample and append a token for each row.

        Returns:
            int32 [R], overwritten by the next call; -1 for rows whose logits are not numbers, which get none.
            Where the device runs on by itself: what waits for these; unknown tokens are appended till then.
        """

    @property
    def num_failed(self) -> int:
        """Rows for which the last draw(), or the wait for it, returned -1."""


class StepInFlight(NamedTuple):
    """A step that runs on the device.

    Attributes:
        finish: waits for it and returns its answer; to be called once, in the order in which steps began.
    """

    finish: Callable[[], ModelRunnerOutput]


class StepGraphs(Protocol):
    """The recordings of one batch."""

    def prepare_ahead(self) -> bool:
        """Record a step before it is needed, while nobody waits; returns whether there was one to record."""

    def can_follow(self, step: SchedulerOutput) -> bool:
        """Whether forward() and draw() may be called for a step before the one that runs is finished."""

    def forward(self, step: SchedulerOutput) -> StepGraph | None:
        """Run the model for a step that decodes one token of each row; None, and nothing done, for others.

        Raises:
            WorkerError: engine and worker disagree about the batch.
        """
