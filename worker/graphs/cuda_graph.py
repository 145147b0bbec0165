"""A decode step of one batch size as two CUDA graphs: the model and the sampling."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.sampling_state import MASKED
from splitserve.worker.batch.step_graphs import Drawn, RowMasks
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.device.cuda import CudaDevice
from splitserve.worker.graphs.cuda_step import CudaStep
from splitserve.worker.kv_cache.layout import KVCache
from splitserve.worker.models.base import Model
from splitserve.worker.models.placement import Placement
from splitserve.worker.ops.columns import Int32
from splitserve.worker.parallel.group import RankGroup

# Placeholder for a token that is not known yet.
_UNKNOWN = -1


def known_features(group: RankGroup | None) -> int:
    """Features of rows that draw() knows; ranks that do not sample have no matchers, and sample eagerly."""
    return int(MASKED) if group is None else 0


class CudaGraph:
    """The decode step of one batch size, in two halves; smaller steps are padded to it."""

    # The functions that replay the captured halves. Until they are set there is no reference cycle, so an
    # object whose capture runs out of memory is freed at once.
    _forward: Callable[[], object]
    _draw: Callable[[], object]

    def __init__(
        self,
        placement: Placement[CudaDevice],
        model: Model,
        caches: list[KVCache],
        step: CudaStep,
        *,
        samples: bool,
    ) -> None:
        """Capture nothing yet; the arguments must live and must not move as long as this object is used.

        Without `samples` there is no second half, and no draw().
        """
        self._device, self._backend, mesh = placement
        self._group = mesh.group
        self._model = model
        self._caches = caches
        self._step = step
        self._samples = samples
        self._hidden = torch.empty(0)
        self._inputs: StepInputs | None = None
        self._batch: InputBatch | None = None

    @torch.inference_mode()
    def run(self) -> CudaGraph:
        """Run a padding-only step eagerly, as both halves need before they are captured."""
        self._run_model()
        if self._samples:
            self._run_sampling()
        return self

    @torch.inference_mode()
    def capture(self) -> CudaGraph:
        """Capture both halves, once, without running them."""
        self._forward = self._device.capture(self._run_model)
        if self._samples:
            self._draw = self._device.capture(self._run_sampling)
        return self

    def _run_model(self) -> None:
        self._backend.begin_step(self._step.meta)
        self._step.feed()
        hidden = self._model.forward(self._step.token_ids, self._step.meta, self._caches)
        assert hidden is not None, "a pipeline captures nothing"
        self._hidden = hidden

    def _run_sampling(self) -> None:
        self._step.draw(self._device.ops, self._model.compute_logits(self._hidden), self._group)

    def forward(self, batch: InputBatch, inputs: StepInputs) -> None:
        """Run the model for a step of at most this size, one token per row."""
        self._batch, self._inputs = batch, inputs
        self._step.fill(self._device, batch, inputs)
        self._forward()

    @property
    def rows(self) -> Int32:
        """[R], the rows of the last forward()."""
        return self.inputs().rows

    @property
    def hidden(self) -> torch.Tensor:
        """[R, H] final hidden states of the last forward(), in the model's buffer."""
        return self._hidden[: len(self.rows)]

    @property
    def needs_sampler(self) -> bool:
        """Whether a row of the last forward() has a feature that draw() does not know, or does not sample."""
        inputs = self.inputs()
        return len(inputs.sampling) < len(inputs.rows) or bool(self._features & ~known_features(self._group))

    @property
    def needs_masks(self) -> bool:
        """Whether one of the rows of the last forward() has a mask."""
        return bool(self._features & MASKED)

    @property
    def is_asynchronous(self) -> bool:
        """Always True: forward() has enqueued the model."""
        return True

    @property
    def _features(self) -> int:
        assert self._batch is not None
        return int(np.bitwise_or.reduce(self._batch.sampling.features[self.rows]))

    def inputs(self) -> StepInputs:
        """The step inputs of the last forward()."""
        assert self._inputs is not None, "forward() comes first"
        return self._inputs

    @torch.inference_mode()
    def draw(self, masks: RowMasks | None = None) -> DrawInFlight:
        """Enqueue sampling for the rows of the last forward(), and append placeholder tokens."""
        assert self._batch is not None
        if masks is None:
            self._draw()
        else:
            # Not a replay: the table of masks is not there before it is needed.
            logits = self._model.compute_logits(self._hidden)
            self._step.draw(self._device.ops, logits, self._group, masks)
        return DrawInFlight(self._batch, self.rows, self._device.fetch_later(self._step.drawn))


class DrawInFlight:
    """Sampling in flight for rows that hold placeholder tokens meanwhile; see step_graphs.Drawing."""

    def __init__(self, batch: InputBatch, rows: Int32, fetch: Callable[[], Int32]) -> None:
        """Args: fetch waits and returns int32 [R] or longer, negative for rows without a token."""
        self._batch = batch
        self._rows = rows
        self._fetch = fetch
        self._places = batch.num_tokens[rows]
        self._drawn = np.full(len(rows), _UNKNOWN, np.int32)
        batch.append(rows, self._drawn)

    def wait(self) -> Drawn:
        """Wait for the tokens; see Drawing."""
        self._drawn = self._fetch()[: len(self._rows)]
        return Drawn(self._drawn, int(np.count_nonzero(self._drawn < 0)))

    def apply(self) -> None:
        """Put the tokens into the batch; see Drawing."""
        self._batch.set_tokens(self._rows, self._places, self._drawn)
        failed = self._drawn < 0
        if failed.any():
            self._batch.take_back(self._rows[failed])
