"""A cost model from measured steps: least squares over steps of a real worker in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.row_blocks import RowBlocks
from benchmarks.simulation.cost_model import CostModel, StepWork
from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.ipc.codec import pack_int32
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, NewRow, SchedulerOutput
from splitserve.engine_core.sequence_sampling import SequenceSampling

BLOCK_SIZE = 16
ROW_COUNTS = (1, 2, 4, 8, 16, 32)
CHUNKS = (2, 8, 32, 128, 256)
REPEATS = 7
GREEDY = SequenceSampling(temperature=0.0, seed=0, ignore_eos=True, max_tokens=None)


class MeasuredStep(NamedTuple):
    """One kind of step and the shortest of its times."""

    work: StepWork
    seconds: float


class Fit(NamedTuple):
    """A cost model, and how far it is off: median and largest relative error over the measured steps."""

    cost: CostModel
    median_error: float
    max_error: float


def fit(steps: Sequence[MeasuredStep]) -> Fit:
    """Fit the six costs; one of which no step has anything comes out as 0.

    Errors count relative to a step's time, so that short steps are not drowned by long ones. A cost that
    would come out negative is left out and the others are fitted again.

    Raises:
        ConfigError: no steps are given.
    """
    if not steps:
        raise ConfigError("nothing was measured")
    seconds = np.array([step.seconds for step in steps])
    design = np.array([[1.0, *step.work] for step in steps])
    relative = design / seconds[:, None]
    kept = np.flatnonzero(design.any(axis=0))
    costs = np.zeros(design.shape[1])
    while len(kept):
        # Scaled columns, as pairs are millions of times larger than rows.
        scale = np.abs(relative[:, kept]).max(axis=0)
        solution = np.linalg.lstsq(relative[:, kept] / scale, np.ones(len(steps)), rcond=None)[0] / scale
        if (solution >= 0).all():
            costs[kept] = solution
            break
        kept = np.delete(kept, solution.argmin())
    errors = np.abs(design @ costs / seconds - 1)
    model = CostModel(**dict(zip(CostModel.__struct_fields__, (costs * 1e6).tolist(), strict=True)))
    return Fit(model, float(np.median(errors)), float(errors.max()))


class StepTimer:
    """A worker of this process, with room for the largest step that is timed.

    Attributes:
        move_block_us: microseconds a block takes between pool and offload tier, as the worker measured it.
    """

    def __init__(self, model: str, num_threads: int, context: int) -> None:
        # Here and not above, since it loads torch and OpenMP.
        from splitserve.worker.config import WorkerConfig
        from splitserve.worker.worker import Worker

        self._context = context
        rows = max(ROW_COUNTS)
        config = WorkerConfig(
            model=model, num_threads=num_threads, max_num_seqs=rows, max_num_batched_tokens=context * rows
        )
        self._worker = Worker(config)
        loaded = self._worker.load(lambda loaded_bytes, total_bytes: None)
        self._blocks = RowBlocks(loaded.model, -(-context // BLOCK_SIZE))
        ready = self._worker.init_kv_cache(self._blocks.of_rows(rows), 1)
        self.move_block_us = ready.move_block_ns / 1000
        self._num_steps = 0

    def measure(self) -> list[MeasuredStep]:
        """Time decode steps over batch sizes and contexts, and prefill chunks over lengths and contexts."""
        for _ in range(3):
            self._time(max(ROW_COUNTS), 0, 32)  # the first steps load pages and wake threads
        steps = []
        for rows in ROW_COUNTS:
            for before in (16, self._context // 4, self._context // 2):
                steps.append(self._time(rows, before, 1))
        for rows in (1, 4):
            for chunk in CHUNKS:
                for before in (0, self._context // 4):
                    if before + chunk < self._context:
                        steps.append(self._time(rows, before, chunk))
        return steps

    def _time(self, rows: int, before: int, chunk: int) -> MeasuredStep:
        """Time a step in which each row, `before` tokens in, computes `chunk` tokens.

        The shortest of REPEATS counts: whatever else runs on the machine only ever adds.
        """
        times = []
        for _ in range(REPEATS):
            # One token more than is computed, so that prefill chunks do not sample; decode rows do.
            known = before + chunk + (chunk > 1)
            if before:
                self._run(rows, before, self._new_rows(rows, known))
                times.append(self._run(rows, chunk, []).compute_s)
            else:
                times.append(self._run(rows, chunk, self._new_rows(rows, known)).compute_s)
            self._run_freed(rows)
        pairs = rows * (before * chunk + chunk * (chunk + 1) // 2) if chunk > 1 else 0
        prefill, decode = (rows * chunk, 0) if chunk > 1 else (0, rows)
        return MeasuredStep(StepWork(prefill, decode, rows * (before + chunk), pairs), min(times))

    def _run(self, rows: int, num_tokens: int, new_rows: list[NewRow]) -> ModelRunnerOutput:
        self._num_steps += 1
        columns = pack_int32(range(rows)), pack_int32([num_tokens] * rows)
        return self._worker.execute(SchedulerOutput(self._num_steps, *columns, new_rows))

    def _run_freed(self, rows: int) -> None:
        self._num_steps += 1
        self._worker.execute(SchedulerOutput(self._num_steps, b"", b"", freed_rows=pack_int32(range(rows))))

    def _new_rows(self, rows: int, known: int) -> list[NewRow]:
        blocks = self._blocks
        return [
            NewRow(
                row=row,
                token_ids=pack_int32([5 + (row + i) % 40 for i in range(known)]),
                num_prompt_tokens=known,
                num_computed_tokens=0,
                block_ids=blocks.first(row),
                window_block_ids=blocks.windows(row),
                sampling=GREEDY,
            )
            for row in range(rows)
        ]
