"""Decode steps in CUDA graphs, sampling included: one per size of a ladder, captured ahead or when needed."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable

import numpy as np
import torch

from engine_core.ipc.codec import unpack_int32
from engine_core.ipc.worker_messages import SchedulerOutput
from worker.attention.base import AttentionBackend
from worker.cuda_step import CudaStep
from worker.device.cuda import CudaDevice
from worker.device.out_of_memory import is_out_of_memory
from worker.input_batch import InputBatch, Int32, StepInputs
from worker.kv_cache import KVCache
from worker.models.base import Model
from worker.parallel.agreement import all_could
from worker.parallel.group import RankGroup
from worker.step_graphs import Drawn

logger = logging.getLogger(__name__)

# In place of a token that is not known yet.
_UNKNOWN = -1
# Larger steps take so long that launching their kernels one by one costs nothing.
MAX_GRAPH_ROWS = 512


def ladder(max_rows: int) -> list[int]:
    """Sizes that are captured, up to max_rows: close where padding costs most, at most 39 of them."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, MAX_GRAPH_ROWS + 1, 16)]
    return [size for size in sizes if size < max_rows] + [max_rows]


class CudaGraph:
    """The decode step of one size, in two halves; steps of fewer rows are padded to it."""

    def __init__(
        self,
        device: CudaDevice,
        backend: AttentionBackend,
        model: Model,
        caches: list[KVCache],
        step: CudaStep,
        group: RankGroup | None,
    ) -> None:
        """Capture nothing yet; all objects live, and lie where they are, as long as this one is used."""
        self._device = device
        self._step = step
        self._hidden = torch.empty(0)

        def forward() -> None:
            backend.begin_step(step.meta)
            step.feed()
            hidden = model.forward(step.token_ids, step.meta, caches)
            assert hidden is not None, "a pipeline captures nothing"
            self._hidden = hidden

        def draw() -> None:
            step.draw(device.ops, model.compute_logits(self._hidden), group)

        self._forward: Callable[[], object] = forward
        self._draw: Callable[[], object] = draw
        self._inputs: StepInputs | None = None
        self._batch: InputBatch | None = None

    @torch.inference_mode()
    def run(self) -> CudaGraph:
        """Run a step of padding alone, kernel by kernel, as both halves need before they are captured."""
        self._forward()
        self._draw()
        return self

    @torch.inference_mode()
    def capture(self) -> CudaGraph:
        """Capture both halves, once; nothing runs meanwhile."""
        self._forward = self._device.capture(self._forward)
        self._draw = self._device.capture(self._draw)
        return self

    def forward(self, batch: InputBatch, inputs: StepInputs) -> None:
        """Run the model for a step of at most this size, one token per row."""
        self._batch, self._inputs = batch, inputs
        self._step.fill(self._device, batch, inputs)
        self._forward()

    @property
    def rows(self) -> Int32:
        """[R], those of the last forward()."""
        return self.inputs().rows

    @property
    def hidden(self) -> torch.Tensor:
        """[R, H] final hidden states of the last forward(), in the model's buffer."""
        return self._hidden[: len(self.rows)]

    @property
    def needs_sampler(self) -> bool:
        """Whether a row of the last forward() has a feature, or does not draw."""
        assert self._batch is not None
        inputs = self.inputs()
        if len(inputs.sampling) < len(inputs.rows):
            return True
        return bool(np.bitwise_or.reduce(self._batch.sampling.features[inputs.rows]))

    def inputs(self) -> StepInputs:
        """The step of the last forward()."""
        assert self._inputs is not None, "forward() comes first"
        return self._inputs

    @torch.inference_mode()
    def draw(self) -> DrawInFlight:
        """Enqueue the sampling for the rows of the last forward(), and append tokens still unknown."""
        assert self._batch is not None
        self._draw()
        return DrawInFlight(self._batch, self.rows, self._device.fetch_later(self._step.drawn))


class DrawInFlight:
    """A draw for rows of a batch, to which tokens still unknown are appended; see step_graphs.Drawing."""

    def __init__(self, batch: InputBatch, rows: Int32, fetch: Callable[[], Int32]) -> None:
        """Args: fetch waits and returns int32 [R] or more, negative for rows that get no token."""
        self._batch = batch
        self._rows = rows
        self._fetch = fetch
        self._places = batch.num_tokens[rows]
        self._drawn = np.full(len(rows), _UNKNOWN, np.int32)
        batch.append(rows, self._drawn)

    def wait(self) -> Drawn:
        """Wait for it; see Drawing."""
        self._drawn = self._fetch()[: len(self._rows)]
        return Drawn(self._drawn, int(np.count_nonzero(self._drawn < 0)))

    def apply(self) -> None:
        """Put what was drawn into the batch; see Drawing."""
        self._batch.set_tokens(self._rows, self._places, self._drawn)
        failed = self._drawn < 0
        if failed.any():
            self._batch.take_back(self._rows[failed])


class CudaGraphs:
    """Answers decode steps from captured graphs; see worker.step_graphs. One thread.

    The graphs share one pool of memory: they never run side by side, and what they keep between steps lies in
    the model's workspace. The largest size is captured before any other, so that these find room in the pool.
    All are dropped when the workspace moves, so the largest steps had better come first. A size that finds no
    memory is left out, and its steps run eagerly.

    Several ranks take the same steps, so they capture the same sizes in the same order and replay the same
    ones; a size for which one of them finds no memory is left out by all.
    """

    def __init__(
        self,
        device: CudaDevice,
        backend: AttentionBackend,
        model: Model,
        kv_caches: list[KVCache],
        batch: InputBatch,
        max_rows: int,
        group: RankGroup | None = None,
    ) -> None:
        """Capture nothing yet.

        Args:
            device: of all the others.
            backend: the model's; can be captured.
            model: loaded.
            kv_caches: one per layer.
            batch: whose rows are decoded.
            max_rows: most rows of logits at once; larger steps, or of over MAX_GRAPH_ROWS, run eagerly.
            group: ranks that part the model and take the same steps; its exchanges can be captured.
        """
        self._device = device
        self._backend = backend
        self._model = model
        self._kv_caches = kv_caches
        self._batch = batch
        self._group = group
        self._sizes = ladder(min(max_rows, MAX_GRAPH_ROWS, len(batch.num_tokens)))
        self._ones = np.ones(self._sizes[-1], "<i4").tobytes()
        self._graphs: dict[int, CudaGraph] = {}
        # Sizes that found no memory.
        self._left_out: set[int] = set()
        self._generation = 0
        num_places = len(batch.num_tokens) + 1
        self._last_drawn = torch.zeros(num_places, dtype=torch.int32, device=device.torch_device)

    @torch.inference_mode()
    def forward(self, step: SchedulerOutput) -> CudaGraph | None:
        """Run the model for a step that decodes one token of each row; None, and nothing done, for others.

        Raises:
            WorkerError: engine and worker disagree about the batch.
        """
        if not self._is_decode(step):
            return None
        graph = self._graph(self._sizes[bisect_left(self._sizes, len(step.num_tokens) // 4)])
        if graph is not None:
            graph.forward(self._batch, self._batch.prepare(step))
        return graph

    def can_follow(self, step: SchedulerOutput) -> bool:
        """Whether a step needs nothing that the host learns from the step that runs.

        So are steady decode steps: nobody comes or goes, no row has a feature, and each draws.
        """
        if step.new_rows or step.freed_rows or step.moves_from or not self._is_decode(step):
            return False
        rows, batch = unpack_int32(step.rows), self._batch
        if rows.min() < 0 or rows.max() >= len(batch.num_tokens):
            return False
        draws = batch.num_computed[rows] + 1 == batch.num_tokens[rows]
        return bool(draws.all()) and not batch.sampling.features[rows].any()

    def _is_decode(self, step: SchedulerOutput) -> bool:
        """Whether each row computes one token, and the rows are of a size that is captured."""
        num_bytes = len(step.num_tokens)
        # A failed row is reported in every step that names it, and computes nothing.
        if not 0 < num_bytes <= len(self._ones) or self._batch.failures:
            return False
        return len(step.rows) == num_bytes and step.num_tokens == self._ones[:num_bytes]

    @torch.inference_mode()
    def prepare_ahead(self) -> bool:
        """Capture the largest size that is missing, if there is no row that would wait for it.

        Returns:
            Whether it did. Once memory was lacking for a size, the others are captured when needed.
        """
        self._drop_outdated()
        if self._batch.occupied.any() or self._left_out:
            return False
        missing = [size for size in self._sizes if size not in self._graphs]
        return bool(missing) and self._capture(missing[-1]) is not None

    def _graph(self, size: int) -> CudaGraph | None:
        self._drop_outdated()
        for wanted in (self._sizes[-1], size) if not self._graphs else (size,):
            if wanted not in self._graphs and wanted not in self._left_out:
                self._capture(wanted)
        return self._graphs.get(size)

    def _capture(self, size: int) -> CudaGraph | None:
        """Capture a size, on all ranks; None, and it is left out, if one of them has no memory for it."""
        graph = self._attempt(size, lambda: self._make(size))
        if graph is not None:
            # The others would wait for this rank's part of a sum: it cannot tell them here what it lacks.
            graph = graph.run() if self._group is not None else self._attempt(size, graph.run)
        # The buffers may have grown for it.
        self._drop_outdated()
        if graph is not None:
            graph = self._attempt(size, graph.capture)
        if graph is not None:
            self._graphs[size] = graph
        return graph

    def _make(self, size: int) -> CudaGraph:
        step = CudaStep(self._last_drawn, size, self._batch.block_table.shape[1])
        return CudaGraph(self._device, self._backend, self._model, self._kv_caches, step, self._group)

    def _attempt(self, size: int, make: Callable[[], CudaGraph]) -> CudaGraph | None:
        """Do what takes memory of this rank alone; None if a rank found none."""
        graph = None
        try:
            graph = make()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            captured, of = len(self._graphs), len(self._sizes)
            logger.warning("graph_left_out size=%d captured=%d of=%d: %s", size, captured, of, error)
            if self._group is None:
                self._device.release_unused()
        if self._group is not None and not all_could(self._group, self._device, graph is not None):
            graph = None
        if graph is None:
            self._left_out.add(size)
        return graph

    def _drop_outdated(self) -> None:
        generation = self._model.workspace.generation
        if self._group is not None:
            generation += self._group.generation
        if self._generation != generation:
            self._graphs.clear()
            self._left_out.clear()
            self._generation = generation
