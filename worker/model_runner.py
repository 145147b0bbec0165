"""How a worker runs one step: update the batch, run the forward pass, sample, build the output."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np
import torch

from splitserve.engine_core.errors import DeviceMemoryError
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, RowError, SchedulerOutput
from splitserve.engine_core.process.logs import log_event
from splitserve.worker.batch.agreement import Agreement
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.step_graphs import (
    Drawing,
    Drawn,
    StepGraph,
    StepGraphs,
    StepHeld,
    StepInFlight,
)
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.device.base import Device
from splitserve.worker.device.out_of_memory import is_out_of_memory
from splitserve.worker.kv_cache.arriving_caches import ArrivingCaches
from splitserve.worker.kv_cache.host_blocks import HostBlocks
from splitserve.worker.models.base import Model
from splitserve.worker.models.placement import Placement
from splitserve.worker.ops.columns import Int32
from splitserve.worker.parallel.group import StepAbandonedError
from splitserve.worker.sampling.pooler import Pooler
from splitserve.worker.sampling.sampler import Sampler
from splitserve.worker.sampling.step_completion import StepCompletion
from splitserve.worker.sampling.step_result import StepResult, StepRunning, StepToDraw, take_drawn
from splitserve.worker.speculation.drafting import Drafting
from splitserve.worker.speculation.stage_drafting import StageDrafting

logger = logging.getLogger(__name__)


_Begun: TypeAlias = StepResult | StepRunning | StepToDraw


def max_logits_rows(device: Device, vocab_size: int) -> int:
    """Most rows of fp32 logits that may exist at once."""
    return max(1, device.max_logits_bytes // (4 * vocab_size))


class ModelRunner:
    """Executes steps; owns the sampler, advances the batch, borrows model and KV memory. Single-threaded.

    Attributes:
        batch: the rows.
        graphs: decode graphs; None if every step runs eagerly.
        drafting: drafts beside the tokens of a step; None for one token per row and step.
    """

    def __init__(
        self,
        placement: Placement[Device],
        model: Model,
        kv_caches: ArrivingCaches,
        host_blocks: HostBlocks,
        sampler: Sampler,
        graphs: StepGraphs | None,
        pooler: Pooler | None = None,
        drafting: Drafting | StageDrafting | None = None,
    ) -> None:
        """Build a runner with an empty batch.

        Args:
            placement: of the model.
            model: loaded.
            kv_caches: one per layer.
            host_blocks: moves blocks of kv_caches to and from CPU memory.
            sampler: of a batch that is not shared with another runner.
            graphs: decode graphs of the batch; None runs every step eagerly.
            pooler: makes vectors of prompts instead of sampling; None samples.
            drafting: of the sampler's batch; None for one token per row and step.
        """
        device, backend, mesh = placement
        self._device = device
        self._backend = backend
        self._mesh = mesh
        self._model = model
        self._kv_caches = kv_caches
        self._host_blocks = host_blocks
        self.batch = batch = sampler.batch
        self.graphs = graphs
        self._last_end = 0.0
        self._sampler = sampler
        self._pooler = pooler
        self.drafting = drafting
        num_logits_rows = max_logits_rows(device, batch.limits.vocab_size)
        group = mesh.group
        agreement = None if group is None else Agreement(group, device, batch)
        is_first = group is None or group.rank == 0
        self._completion = StepCompletion(
            device, model, sampler, num_logits_rows, pooler, agreement, is_first
        )

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step; raises what begin() raises."""
        started = self.begin(step)
        if isinstance(started, StepHeld):
            started = started.draw()
        if not isinstance(started, StepInFlight):
            return started
        output = started.finish()
        started.apply()
        return output

    def forget_batch(self) -> None:
        """Free all rows, with no step in flight: whoever scheduled them is gone."""
        rows = np.flatnonzero(self.batch.occupied)
        self.batch.apply(SchedulerOutput(0, b"", b"", freed_rows=pack_int32(rows)))

    def can_follow(self, step: SchedulerOutput) -> bool:
        """Whether a step may begin while another is still in flight on the device."""
        if self.graphs is None or not self.graphs.can_follow(step):
            return False
        return self.drafting is None or self.drafting.can_follow(step)

    def prepare_ahead(self) -> bool:
        """If the batch is empty, do some preparation that later steps would otherwise have to do.

        Call with no step in flight, and on all ranks together.

        Returns:
            Whether there was something to do.
        """
        return self.graphs is not None and self.graphs.prepare_ahead()

    def begin(self, step: SchedulerOutput) -> ModelRunnerOutput | StepInFlight | StepHeld:
        """Run one step, or on an asynchronous device leave it in flight, or held until it may be sampled.

        While a step is in flight, only steps for which can_follow() is true may begin. What is returned
        raises the same.

        Raises:
            WorkerError: engine and worker disagree about the batch or the KV cache's places.
            ProtocolError: a column is malformed.
            RuntimeError: the device failed, and the outcome of the step is unknown. Out of memory fails all
                rows of the step instead, unless the other ranks cannot be told.
            RankLostError: another rank is gone or did not respond in time.
        """
        started = time.perf_counter()
        if self.drafting is not None:
            self.drafting.leave(step)
        self.batch.apply(step)
        move_s = self._move(step) if step.moves_from or step.moves_to else 0.0
        return self._attempt(step, (started, move_s), partial(self._run, step))

    def _attempt(
        self, step: SchedulerOutput, times: tuple[float, float], run: Callable[[], _Begun]
    ) -> ModelRunnerOutput | StepInFlight | StepHeld:
        """Run a step, or the rest of it; times are when it began, and the seconds of its moves."""
        started, move_s = times
        result: StepResult | None = None
        lack = ""
        try:
            begun = run()
            if isinstance(begun, StepRunning):
                return StepInFlight(partial(self._end, step, started, move_s, begun), begun.apply)
            if isinstance(begun, StepToDraw):
                return StepHeld(partial(self._draw_held, step, times, begun))
            result = begun
        except (RuntimeError, StepAbandonedError) as error:
            # Nothing is allocated once the ranks have settled a step, so they all give up the same one.
            has_no_room = isinstance(error, StepAbandonedError) or is_out_of_memory(error)
            if not has_no_room or not self._can_abandon():
                raise
            lack = str(error)
        finally:
            self._kv_caches.wait()
        if result is None:
            # After the except block: the error kept the memory of the step alive.
            result = _give_up(self.batch, step, lack)
            self._device.release_unused()
        return self._pack(step, result, time.perf_counter() - started, move_s)

    def _pack(
        self, step: SchedulerOutput, result: StepResult, compute_s: float, move_s: float
    ) -> ModelRunnerOutput:
        rest = 0 if self.drafting is None else self.drafting.speculator.rest
        return result.pack(step.step, compute_s, move_s, rest)

    def _end(
        self, step: SchedulerOutput, started: float, move_s: float, running: StepRunning
    ) -> ModelRunnerOutput:
        """Build the output of a step in flight; its time does not include that of the previous step."""
        result, now = running.wait(), time.perf_counter()
        compute_s, self._last_end = now - max(started, self._last_end), now
        running.done(compute_s)
        return self._pack(step, result, compute_s, move_s)

    def _draw_held(
        self, step: SchedulerOutput, times: tuple[float, float], held: StepToDraw
    ) -> ModelRunnerOutput | StepInFlight:
        begun = self._attempt(step, times, partial(self._complete, held.graph, held.took))
        assert not isinstance(begun, StepHeld), "it was held once"
        return begun

    def _run(self, step: SchedulerOutput) -> _Begun:
        if self.drafting is None:
            self._sampler.grammars.work_ahead()
            return self._run_plainly(step)
        return self.drafting.run(step, self._run_plainly, self._run_drafted)

    def _run_plainly(self, step: SchedulerOutput) -> _Begun:
        graph = self.graphs.forward(step) if self.graphs is not None else None
        if graph is None:
            return self._run_eagerly(step)
        if self.drafting is not None:
            self.drafting.took_graph(graph)
        if graph.is_asynchronous and graph.needs_masks and not graph.needs_sampler:
            return StepToDraw(graph)
        return self._complete(graph)

    def _complete(
        self, graph: StepGraph, took: Callable[[float], None] | None = None
    ) -> StepResult | StepRunning:
        """Sample the rows of a step whose model has been run, or enqueued; took hears of a step in flight."""
        drawn = None if graph.needs_sampler else self._draw(graph)
        if drawn is None:
            return self._finish(graph.hidden, graph.inputs())
        if not isinstance(drawn, Drawn):
            return StepRunning(self._sampler, graph.rows, drawn, took)
        result = take_drawn(self.batch, graph.rows, drawn)
        result.fail_rows(self.batch)
        self._sampler.took(result.rows[0], result.token_ids[0])
        return result

    @torch.inference_mode()
    def _draw(self, graph: StepGraph) -> Drawn | Drawing | None:
        """Let the graph sample; None if it cannot, since a row fails."""
        masks = self._sampler.masks(graph.rows) if graph.needs_masks else None
        return None if masks is None and graph.needs_masks else graph.draw(masks)

    def _can_abandon(self) -> bool:
        """Make the other ranks abandon the step too; False if they cannot be told."""
        group, stage = self._mesh.group, self._mesh.stage
        return stage is None and (group is None or group.abandon_step())

    def _forward(self, inputs: StepInputs) -> torch.Tensor | None:
        token_ids, *layout = self._device.place(inputs.tensors)
        meta = inputs.layout_of(layout)
        self._backend.begin_step(meta)
        outputs = None
        if inputs.outputs is not None:
            (outputs,) = self._device.place((torch.from_numpy(inputs.outputs),))
        if self.drafting is not None:
            self.drafting.took(inputs)
        return self._model.forward(token_ids, meta, self._kv_caches, outputs)

    def _move(self, step: SchedulerOutput) -> float:
        """Move blocks before the step writes into them; return the seconds it took, or took to enqueue."""
        started = time.perf_counter()
        arrivals = self._host_blocks.move(unpack_int32(step.moves_from), unpack_int32(step.moves_to))
        self._kv_caches.expect(arrivals)
        return time.perf_counter() - started

    @torch.inference_mode()
    def _run_drafted(self, step: SchedulerOutput, num_drafts: Int32) -> StepResult:
        assert self.drafting is not None, "somebody drafted"
        inputs = self.batch.prepare(step, num_drafts)
        hidden = self.drafting.forward(inputs)
        if hidden is not None:
            inputs = inputs._replace(outputs=None)
        elif len(inputs.rows):
            hidden = self._forward(inputs)
        result = StepResult(inputs.errors) if hidden is None else self._finish(hidden, inputs)
        result.add_ended(inputs.ended)
        return result

    @torch.inference_mode()
    def _run_eagerly(self, step: SchedulerOutput) -> StepResult:
        inputs = self.batch.prepare(step)
        inputs = inputs if self._pooler is None else self._pooler.with_outputs(inputs)
        hidden = self._forward(inputs) if len(inputs.rows) else None
        # Not if there are no rows, or if later stages continue with them.
        return StepResult(inputs.errors) if hidden is None else self._finish(hidden, inputs)

    @torch.inference_mode()
    def _finish(self, hidden: torch.Tensor, inputs: StepInputs) -> StepResult:
        """Score prompts and sample, with all sampling features."""
        learn = None if self.drafting is None else self.drafting.speculator.learn
        return self._completion.complete(hidden, inputs, learn)


def _give_up(batch: InputBatch, step: SchedulerOutput, lack: str) -> StepResult:
    """Fail all rows of a step that ran out of memory; the engine will free them."""
    rows, num_tokens = unpack_int32(step.rows).tolist(), int(unpack_int32(step.num_tokens).sum())
    log_event(
        logger,
        logging.WARNING,
        "out_of_memory",
        step=step.step,
        rows=len(rows),
        tokens=num_tokens,
        detail=lack,
    )
    message = f"a step of {num_tokens} tokens did not fit the memory of the device"
    for row in rows:
        if row not in batch.failures:
            batch.fail(RowError(row, DeviceMemoryError.code, message, DeviceMemoryError.status))
    return StepResult([batch.failures[row] for row in rows])
