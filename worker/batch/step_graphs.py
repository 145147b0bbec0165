"""What the model runner asks of recorded decode steps, whatever the device records them with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, SchedulerOutput
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.ops.columns import Int32


class Drawn(NamedTuple):
    """What a decode step has drawn, a token for each of R rows.

    Attributes:
        token_ids: int32 [R], overwritten by the next step; negative for rows that get none, see
            worker.sampling.sampler.split_errors.
        num_failed: how many get none.
    """

    token_ids: Int32
    num_failed: int


class Drawing(Protocol):
    """A draw that the device is about to make; the batch holds unknown tokens in its place."""

    def wait(self) -> Drawn:
        """Wait for it; changes nothing."""

    def apply(self) -> None:
        """Put what was drawn into the batch; once, after wait(). Rows without a token are to be failed."""


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

    def draw(self) -> Drawn | Drawing:
        """Sample and append a token for each row.

        Returns:
            What was drawn; where the device runs on by itself, what waits for that.
        """


class StepInFlight(NamedTuple):
    """A step that runs on the device. Both are to be called once, in the order in which steps began.

    Attributes:
        finish: waits for it and returns its answer; the batch does not change.
        apply: puts what came of it into the batch; after finish(). A step that may follow begins before that,
            whether the answer is there or not. So what it computes depends on no clock, and is the same on
            every rank.
    """

    finish: Callable[[], ModelRunnerOutput]
    apply: Callable[[], None]


class StepGraphs(Protocol):
    """The recordings of one batch."""

    def prepare_ahead(self) -> bool:
        """Record a step before it is needed, while nobody waits; returns whether there was one to record.

        All ranks that part the model have to call it together.
        """

    def can_follow(self, step: SchedulerOutput) -> bool:
        """Whether forward() and draw() may be called for a step before the one that runs is finished."""

    def forward(self, step: SchedulerOutput) -> StepGraph | None:
        """Run the model for a step that decodes one token of each row; None, and nothing done, for others.

        Raises:
            WorkerError: engine and worker disagree about the batch.
        """
