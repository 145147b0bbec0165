"""The interface of decode graphs, whatever mechanism the device uses to capture them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, SchedulerOutput
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.ops.columns import Int32


class Drawn(NamedTuple):
    """The tokens that a decode step sampled for R rows.

    Attributes:
        token_ids: int32 [R], overwritten by the next step; negative for rows without one, see
            worker.sampling.sampler.split_errors.
        num_failed: number of rows without a token.
    """

    token_ids: Int32
    num_failed: int


class RowMasks(NamedTuple):
    """Which tokens rows may draw, on the device of the logits, as SamplingOps.sample takes them last.

    Attributes:
        masks: int32 [N, ceil(V / 32)]; on a CPU always the same memory.
        mask_rows: int32 [S], the mask of each row of the logits; -1 for none.
    """

    masks: torch.Tensor
    mask_rows: torch.Tensor


class Drawing(Protocol):
    """A sampling in flight on the device; the batch holds placeholder tokens until it is done."""

    def wait(self) -> Drawn:
        """Wait for the tokens; changes nothing."""

    def apply(self) -> None:
        """Put the tokens into the batch; call once, after wait(). The caller fails rows without a token."""


class StepGraph(Protocol):
    """A decode step that has just run the model; draw(), or sampling inputs() eagerly, completes it."""

    @property
    def rows(self) -> Int32:
        """[R], the rows of the step."""

    @property
    def hidden(self) -> torch.Tensor:
        """[R, H] final hidden states, in the model's buffer."""

    @property
    def needs_sampler(self) -> bool:
        """Whether draw() cannot sample a row, or one does not sample; then inputs() are sampled eagerly."""

    @property
    def needs_masks(self) -> bool:
        """Whether draw() has to be given masks."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether the model may still run: masks are then best made after the step before is applied."""

    def inputs(self) -> StepInputs:
        """The step's inputs, as InputBatch.prepare returns them."""

    def draw(self, masks: RowMasks | None) -> Drawn | Drawing:
        """Sample and append a token for each row; needs_sampler must be False.

        Args:
            masks: if needs_masks.

        Returns:
            The tokens, or on an asynchronous device a handle to wait for them.
        """


class StepInFlight(NamedTuple):
    """A step in flight on the device. Call each function once, in the order in which steps began.

    Attributes:
        finish: waits for the step and returns its output; the batch does not change.
        apply: puts the output into the batch; after finish(). A step that may follow begins before that,
            whether the output is ready or not, so what it computes does not depend on timing and is the
            same on every rank.
    """

    finish: Callable[[], ModelRunnerOutput]
    apply: Callable[[], None]


class StepHeld(NamedTuple):
    """A step whose model runs on the device, and whose rows are sampled once their masks are known.

    Attributes:
        draw: makes the masks and samples. Call once, after the step before has been applied: a grammar's mask
            follows from that step's token.
    """

    draw: Callable[[], ModelRunnerOutput | StepInFlight]


class StepGraphs(Protocol):
    """The decode graphs of one batch.

    Attributes:
        is_at_speed: whether the last step took about as long as steps of its size will from now on.
    """

    @property
    def is_at_speed(self) -> bool:
        """See above."""

    def prepare_ahead(self) -> bool:
        """Capture a graph ahead of need, while idle; returns whether there was one to capture.

        All ranks that share the model must call it together.
        """

    def can_follow(self, step: SchedulerOutput) -> bool:
        """Whether forward() and draw() may be called for a step while another is still in flight."""

    def forward(self, step: SchedulerOutput) -> StepGraph | None:
        """Run the model if the step decodes one token of each row; else do nothing and return None.

        Raises:
            WorkerError: engine and worker disagree about the batch.
        """


class DraftedStepGraphs(Protocol):
    """The graphs of steps with drafts of one batch."""

    @property
    def is_at_speed(self) -> bool:
        """Whether the last step took as long as steps of its sizes will from now on."""

    def prepare(self, inputs: StepInputs) -> bool:
        """Make what forward() needs for a step and can make before, so that it runs the model for that alone.

        It may run the model on padding, so call it before the model's own buffers are given anything to read.

        Returns:
            Whether there was nothing to do.
        """

    def forward(self, inputs: StepInputs) -> torch.Tensor | None:
        """Run the model if every row computes its last known token and drafts; else return None.

        Returns:
            The hidden states of all tokens, [T, H], valid until the next step.
        """
