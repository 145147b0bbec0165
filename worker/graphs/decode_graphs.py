"""CPU decode graphs, one per number of rows: two native calls replay what Python ran kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from splitserve.engine_core.errors import WorkerError
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.step_graphs import Drawn, RowMasks
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.graphs.decode_step import DecodeStep
from splitserve.worker.kv_cache.arriving_caches import ArrivingCaches
from splitserve.worker.models.base import Model
from splitserve.worker.ops.decode import Recording
from splitserve.worker.parallel.group import RankGroup

# Steps of more rows run eagerly, as their kernels take so long that a replay saves nothing. This also bounds
# the number of recordings, each of some 300 bytes per kernel.
MAX_GRAPH_ROWS = 64


class DecodeGraph:
    """The decode step for one number of rows; its first run records it, later runs replay it.

    Attributes:
        rows: int32 [R], the rows of the last forward().
        num_tokens: the num_tokens column of such a step's message: one token of each row.
        hidden: [R, H] final hidden states of the last forward(), in the model's buffer.
    """

    hidden: torch.Tensor

    def __init__(self, model: Model, kv_caches: ArrivingCaches, step: DecodeStep) -> None:
        """Record nothing yet; all three must live and must not move as long as this object is used."""
        self._model = model
        self._kv_caches = kv_caches
        self._step = step
        self.rows = step.rows
        self.num_tokens = np.ones(len(step.drawn), "<i4").tobytes()
        self._forward: Callable[[], None] = self._record_forward
        self._draw: Callable[[], None] = self._record_draw
        self._draw_masked: Callable[[], None] = self._record_draw_masked

    def forward(self, rows: bytes) -> None:
        """Run the model for the next token of R rows, given as the bytes in the message.

        Raises:
            WorkerError: engine and worker disagree about a row.
        """
        self._step.row_bytes[:] = rows
        try:
            self._forward()
        except ValueError as error:
            raise WorkerError(f"a step is malformed: {error}") from None

    @property
    def needs_sampler(self) -> bool:
        """Whether draw() cannot sample a row of the last forward(), or one does not sample."""
        return self._step.needs_sampler

    @property
    def needs_masks(self) -> bool:
        """Whether a row of the last forward() has a mask."""
        return self._step.needs_masks

    @property
    def is_asynchronous(self) -> bool:
        """Always False: forward() has run the model."""
        return False

    def inputs(self) -> StepInputs:
        """The inputs of the last forward(), as InputBatch.prepare returns them."""
        return self._step.inputs()

    def draw(self, masks: RowMasks | None) -> Drawn:
        """Sample and append a token for each row of the last forward(); see StepGraph."""
        if masks is None:
            self._draw()
        else:
            self._step.set_masks(masks)
            self._draw_masked()
        return Drawn(self._step.drawn, self._step.num_failed)

    @torch.inference_mode()
    def _record_forward(self) -> None:
        with Recording() as recording:
            token_ids, meta = self._step.lay_out()
            hidden = self._model.forward(token_ids, meta, self._kv_caches)
        assert hidden is not None, "a pipeline records nothing"
        self.hidden = hidden
        self._forward = recording.replay

    @torch.inference_mode()
    def _record_draw(self) -> None:
        with Recording() as recording:
            self._step.draw(self._model.compute_logits(self.hidden))
        self._draw = recording.replay

    @torch.inference_mode()
    def _record_draw_masked(self) -> None:
        with Recording() as recording:
            self._step.draw(self._model.compute_logits(self.hidden), is_masked=True)
        self._draw_masked = recording.replay


class DecodeGraphs:
    """Runs decode steps from recordings; single-threaded.

    A step runs eagerly the first time its number of rows occurs and is recorded the second time; with rows in
    the batch that have an adapter it is another recording, so that others pay nothing. All recordings are
    dropped when the model's buffers move.

    Implements the interface in worker.batch.step_graphs.
    """

    # A step that records itself takes hardly longer.
    is_at_speed = True

    def __init__(
        self,
        model: Model,
        kv_caches: ArrivingCaches,
        batch: InputBatch,
        max_rows: int,
        group: RankGroup | None = None,
    ) -> None:
        """Record nothing yet.

        Args:
            model: loaded; everything it computes in a pass must go through kernels that Recording captures.
            kv_caches: one per layer.
            batch: the rows to decode.
            max_rows: most rows of logits at once; steps of more rows, or over MAX_GRAPH_ROWS, run eagerly.
            group: the ranks that shard the model and run the same steps; its exchanges are recorded.
        """
        self._model = model
        self._kv_caches = kv_caches
        self._batch = batch
        self._group = group
        self._max_rows = min(max_rows, MAX_GRAPH_ROWS, batch.limits.max_num_seqs)
        width, num_groups = batch.blocks.table.shape[1], batch.limits.num_window_groups
        self._block_tables = torch.empty((self._max_rows, width), dtype=torch.int32)
        self._window_tables = torch.empty((num_groups, self._max_rows, width), dtype=torch.int32)
        # Keyed by the length in bytes of the message's rows column, and whether there are adapters.
        self._graphs: dict[tuple[int, bool], DecodeGraph] = {}
        self._generation = 0

    def prepare_ahead(self) -> bool:
        """Do nothing: a step records itself as it runs, at next to no cost."""
        return False

    def forward(self, step: SchedulerOutput) -> DecodeGraph | None:
        """Run the model if the step decodes one token of each row; else do nothing and return None.

        Raises:
            WorkerError: engine and worker disagree about the batch.
        """
        if self._generation != self._model.workspace.generation:
            self._graphs.clear()
            self._generation = self._model.workspace.generation
        graph = self._graphs.get((len(step.rows), self._batch.adapters.are_used))
        if graph is None:
            self._note(step)
            return None
        # A failed row is reported in every step that includes it, and computes nothing.
        if step.num_tokens != graph.num_tokens or self._batch.failures:
            return None
        graph.forward(step.rows)
        return graph

    def can_follow(self, step: SchedulerOutput) -> bool:
        """Always False: steps are synchronous."""
        return False

    def _note(self, step: SchedulerOutput) -> None:
        """Arrange for the next step of this size to be recorded, if it can be."""
        num_rows, rest = divmod(len(step.rows), 4)
        if rest == 0 and 0 < num_rows <= self._max_rows:
            has_adapters = self._batch.adapters.are_used
            tables = self._block_tables[:num_rows]
            windows = self._window_tables[:, :num_rows] if len(self._window_tables) else None
            decode_step = DecodeStep(
                self._batch, tables, self._group, window_tables=windows, has_adapters=has_adapters
            )
            key = len(step.rows), has_adapters
            self._graphs[key] = DecodeGraph(self._model, self._kv_caches, decode_step)
