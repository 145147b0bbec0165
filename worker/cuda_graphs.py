"""Decode steps in CUDA graphs, sampling included: one per size of a ladder, captured when first needed."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import torch

from engine_core.ipc.worker_messages import SchedulerOutput
from worker.attention.base import AttentionBackend
from worker.cuda_step import CudaStep
from worker.device.cuda import CudaDevice
from worker.input_batch import InputBatch, Int32, StepInputs
from worker.kv_cache import KVCache
from worker.models.base import Model

# Larger steps take so long that launching their kernels one by one costs nothing.
MAX_GRAPH_ROWS = 512


def ladder(max_rows: int) -> list[int]:
    """Sizes that are captured, up to max_rows: close where padding costs most, at most 44 of them."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, MAX_GRAPH_ROWS + 1, 16)]
    return [size for size in sizes if size < max_rows] + [max_rows]


class CudaGraph:
    """The decode step of one size; steps of fewer rows are padded to it.

    Attributes:
        num_failed: rows for which the last draw() returned -1.
    """

    num_failed: int

    def __init__(
        self,
        device: CudaDevice,
        backend: AttentionBackend,
        model: Model,
        caches: list[KVCache],
        step: CudaStep,
    ) -> None:
        """Capture both halves; all objects live, and lie where they are, as long as this one is used."""
        self._device = device
        self._step = step
        self._hidden = torch.empty(0)

        def forward() -> None:
            backend.begin_step(step.meta)
            self._hidden = model.forward(step.token_ids, step.meta, caches)

        self._forward = device.capture(forward)

        def draw() -> None:
            logits = model.compute_logits(self._hidden)
            assert logits is not None, "a model of several ranks is not captured"
            step.draw(device.ops, logits)

        self._draw = device.capture(draw)
        self._inputs: StepInputs | None = None
        self._batch: InputBatch | None = None

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
    def draw(self) -> Int32:
        """Sample and append a token for each row of the last forward(), which does not need the sampler.

        Returns:
            int32 [R]; -1 for rows whose logits are not numbers, which get none.
        """
        assert self._batch is not None
        rows = self.rows
        self._draw()
        drawn: Int32 = self._device.fetch(self._step.drawn)[: len(rows)]
        good = drawn >= 0
        self.num_failed = len(rows) - int(np.count_nonzero(good))
        if self.num_failed:
            self._batch.append(rows[good], drawn[good])
        else:
            self._batch.append(rows, drawn)
        return drawn


class CudaGraphs:
    """Answers decode steps from captured graphs; see worker.step_graphs. One thread.

    The graphs share one pool of memory: they never run side by side, and what they keep between steps lies in
    the model's workspace. All are dropped when that moves, so the largest steps had better come first.
    """

    def __init__(
        self,
        device: CudaDevice,
        backend: AttentionBackend,
        model: Model,
        kv_caches: list[KVCache],
        batch: InputBatch,
        max_rows: int,
    ) -> None:
        """Capture nothing yet.

        Args:
            device: of all the others.
            backend: the model's; can be captured.
            model: loaded.
            kv_caches: one per layer.
            batch: whose rows are decoded.
            max_rows: most rows of logits at once; larger steps, or of over MAX_GRAPH_ROWS, run eagerly.
        """
        self._device = device
        self._backend = backend
        self._model = model
        self._kv_caches = kv_caches
        self._batch = batch
        self._sizes = ladder(min(max_rows, MAX_GRAPH_ROWS, len(batch.num_tokens)))
        self._ones = np.ones(self._sizes[-1], "<i4").tobytes()
        self._graphs: dict[int, CudaGraph] = {}
        self._generation = 0

    @torch.inference_mode()
    def forward(self, step: SchedulerOutput) -> CudaGraph | None:
        """Run the model for a step that decodes one token of each row; None, and nothing done, for others.

        Raises:
            WorkerError: engine and worker disagree about the batch.
        """
        num_bytes = len(step.num_tokens)
        # A failed row is reported in every step that names it, and computes nothing.
        if not 0 < num_bytes <= len(self._ones) or self._batch.failures:
            return None
        if step.num_tokens != self._ones[:num_bytes]:
            return None
        graph = self._graph(self._sizes[bisect_left(self._sizes, num_bytes // 4)])
        graph.forward(self._batch, self._batch.prepare(step))
        return graph

    def _graph(self, size: int) -> CudaGraph:
        if self._generation != self._model.workspace.generation:
            self._graphs.clear()
        graph = self._graphs.get(size)
        if graph is None:
            step = CudaStep(self._device.torch_device, size, self._batch.block_table.shape[1])
            graph = CudaGraph(self._device, self._backend, self._model, self._kv_caches, step)
            if self._generation != self._model.workspace.generation:
                self._graphs.clear()
            self._graphs[size] = graph
            self._generation = self._model.workspace.generation
        return graph
