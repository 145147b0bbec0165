"""CUDA graphs of decode steps with sampling: one per size of a ladder, captured ahead or on demand."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable

import numpy as np
import torch

from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from splitserve.engine_core.process.logs import log_event
from splitserve.worker.batch.agreement import all_could
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.device.cuda import CudaDevice
from splitserve.worker.device.out_of_memory import is_out_of_memory
from splitserve.worker.graphs.cuda_graph import CudaGraph, known_features
from splitserve.worker.graphs.cuda_step import CudaStep
from splitserve.worker.kv_cache.arriving_caches import ArrivingCaches
from splitserve.worker.models.base import Model
from splitserve.worker.models.placement import Placement

logger = logging.getLogger(__name__)

# Larger steps take so long that launching their kernels one by one costs nothing extra.
MAX_GRAPH_ROWS = 512


def ladder(max_rows: int) -> list[int]:
    """Batch sizes to capture, up to max_rows: dense where padding costs most, at most 39 of them."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, MAX_GRAPH_ROWS + 1, 16)]
    return [size for size in sizes if size < max_rows] + [max_rows]


class CudaGraphs:
    """Runs decode steps from captured graphs; see worker.batch.step_graphs. Single-threaded.

    A size is captured again for steps with rows that have an adapter, so that others pay nothing: under the
    negative of its number.

    The graphs share one memory pool: they never run concurrently, and what outlives a step is in the
    model's workspace. The largest size is captured first, so the others fit in the pool. All are dropped when
    the workspace moves, so it is best if the largest steps come first. Once a capture runs out of memory,
    nothing more is captured, and steps of missing sizes run eagerly.

    All ranks run the same steps, so they capture the same sizes in the same order and replay the same graphs;
    if one of them runs out of memory, all stop capturing.
    """

    def __init__(
        self,
        placement: Placement[CudaDevice],
        model: Model,
        kv_caches: ArrivingCaches,
        batch: InputBatch,
        max_rows: int,
        *,
        samples: bool = True,
    ) -> None:
        """Capture nothing yet.

        Args:
            placement: of the model; its backend and its rank group must be capturable.
            model: loaded.
            kv_caches: one per layer.
            batch: the rows to decode.
            max_rows: most rows of a graph; steps of more, or over MAX_GRAPH_ROWS, run eagerly.
            samples: capture sampling, too; False for forward_rows() alone.
        """
        self._placement = placement
        self._device = device = placement.device
        self._group = placement.mesh.group
        self._model = model
        self._kv_caches = kv_caches
        self._batch = batch
        self._samples = samples
        self._sizes = ladder(min(max_rows, MAX_GRAPH_ROWS))
        self._ones = np.ones(self._sizes[-1], "<i4").tobytes()
        self._graphs: dict[int, CudaGraph] = {}
        # Those of the batch are not for a draft model.
        self._takes_adapters = model.adapters is not None
        self._adapted_sizes = [-size for size in self._sizes] if self._takes_adapters else []
        self._generation = 0
        self._has_room = True
        self.is_at_speed = True
        num_places = len(batch.num_tokens) + 1
        self._last_drawn = torch.zeros(num_places, dtype=torch.int32, device=device.torch_device)
        table = (self._sizes[-1], batch.blocks.table.shape[1])
        self._block_tables = torch.zeros(table, dtype=torch.int32, device=device.torch_device)
        windows = (batch.limits.num_window_groups, *table)
        self._window_tables = torch.zeros(windows, dtype=torch.int32, device=device.torch_device)

    @torch.inference_mode()
    def forward(self, step: SchedulerOutput) -> CudaGraph | None:
        """Run the model if the step decodes one token of each row; else do nothing and return None.

        It also returns None for a step whose graph cannot be captured for lack of memory.

        Raises:
            WorkerError: engine and worker disagree about the batch.
        """
        graph = self._graph(self._size_of(len(step.rows) // 4)) if self._is_decode(step) else None
        if graph is not None:
            self._replay(graph, self._batch.prepare(step))
        return graph

    @torch.inference_mode()
    def forward_rows(self, inputs: StepInputs) -> torch.Tensor | None:
        """Run the model for rows of one token each, whatever of the batch they are; else as forward().

        Returns:
            The hidden states of the rows, [R, H], valid until the next step.
        """
        graph = self._graph_of_rows(len(inputs.rows))
        if graph is None:
            return None
        self._replay(graph, inputs)
        return graph.hidden

    @torch.inference_mode()
    def prepare_rows(self, num_rows: int) -> bool:
        """Have the graph that forward_rows() replays; returns whether it was there, or there will be none."""
        self._graph_of_rows(num_rows)
        return self.is_at_speed

    def _graph_of_rows(self, num_rows: int) -> CudaGraph | None:
        if not 0 < num_rows <= self._sizes[-1]:
            self.is_at_speed = True
            return None
        return self._graph(self._size_of(num_rows))

    def _replay(self, graph: CudaGraph, inputs: StepInputs) -> None:
        # A replay is a single launch, so it cannot wait between layers.
        self._kv_caches.wait()
        graph.forward(self._batch, inputs)

    def can_follow(self, step: SchedulerOutput) -> bool:
        """Whether a step needs nothing that the host only learns from the step in flight.

        True for steady decode steps: no row enters or leaves, none has a feature but a mask, and each
        samples. The graph must exist, as an eager step needs all tokens on the host.
        """
        if step.new_rows or step.freed_rows or step.moves_from or not self._is_decode(step):
            return False
        rows, batch = unpack_int32(step.rows), self._batch
        if rows.min() < 0 or rows.max() >= len(batch.num_tokens):
            return False
        draws = batch.num_computed[rows] + 1 == batch.num_tokens[rows]
        features = np.bitwise_or.reduce(batch.sampling.features[rows])
        if not draws.all() or features & ~np.uint16(known_features(self._group)):
            return False
        is_captured = self._size_of(len(rows)) in self._graphs
        return is_captured and self._generation == self._current_generation

    def _is_decode(self, step: SchedulerOutput) -> bool:
        """Whether each row computes one token, and the number of rows is small enough to capture."""
        num_bytes = len(step.num_tokens)
        # A failed row is reported in every step that includes it, and computes nothing.
        if not 0 < num_bytes <= len(self._ones) or self._batch.failures:
            return False
        return len(step.rows) == num_bytes and step.num_tokens == self._ones[:num_bytes]

    def _size_of(self, num_rows: int) -> int:
        size = self._sizes[bisect_left(self._sizes, num_rows)]
        return -size if self._takes_adapters and self._batch.adapters.are_used else size

    @torch.inference_mode()
    def prepare_ahead(self) -> bool:
        """Capture the largest missing size, if no row would have to wait for it.

        Returns:
            Whether a size was captured.
        """
        if self._batch.occupied.any():
            return False
        self._drop_outdated()
        # The last one first.
        wanted = (*reversed(self._adapted_sizes), *self._sizes)
        missing = [size for size in wanted if size not in self._graphs]
        return bool(missing) and self._capture(missing[-1])

    def _graph(self, size: int) -> CudaGraph | None:
        self._drop_outdated()
        self.is_at_speed = size in self._graphs or not self._has_room
        if not self._graphs:
            self._capture(self._sizes[-1])
        if size not in self._graphs:
            self._capture(size)
        return self._graphs.get(size)

    def _capture(self, size: int) -> bool:
        """Capture a size; False if memory runs out now or did before, in which case steps run eagerly."""
        if not self._has_room:
            return False
        graph = self._attempt(lambda: self._make(size))
        if graph is not None:
            # The others would wait for this rank's sums, and it could not tell them it is out of memory.
            graph = graph.run() if self._group is not None else self._attempt(graph.run)
        # The buffers may have grown during the run.
        self._drop_outdated()
        if graph is not None:
            graph = self._attempt(graph.capture)
        if graph is not None:
            self._graphs[size] = graph
        elif self._group is None:
            # After the except block: the error kept memory alive. With several ranks, keep what steps need.
            self._device.release_unused()
        return self._has_room

    def _make(self, size: int) -> CudaGraph:
        windows = self._window_tables if len(self._window_tables) else None
        step = CudaStep(
            self._last_drawn, self._block_tables, abs(size), window_tables=windows, has_adapters=size < 0
        )
        caches = list(self._kv_caches)
        return CudaGraph(self._placement, self._model, caches, step, samples=self._samples)

    def _attempt(self, make: Callable[[], CudaGraph]) -> CudaGraph | None:
        """Run work that allocates but communicates nothing; None if any rank ran out of memory."""
        graph = None
        try:
            graph = make()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            captured, of = len(self._graphs), len(self._sizes) + len(self._adapted_sizes)
            log_event(
                logger, logging.WARNING, "graphs_incomplete", captured=captured, of=of, detail=str(error)
            )
        self._has_room = graph is not None
        if self._group is not None:
            self._has_room = all_could(self._group, self._device, graph is not None)
        return graph if self._has_room else None

    def _drop_outdated(self) -> None:
        if self._generation != self._current_generation:
            self._graphs.clear()
            self._generation = self._current_generation

    @property
    def _current_generation(self) -> int:
        exchanged = 0 if self._group is None else self._group.generation
        return self._model.workspace.generation + exchanged
