"""What a worker would do with a step: which rows sample, and how much work it is."""

from __future__ import annotations

import numpy as np

from benchmarks.simulation.cost_model import CostModel, StepWork
from benchmarks.simulation.trace import IntColumn, request_of
from splitserve.engine_core.ipc.codec import pack_int32, unpack_int32
from splitserve.engine_core.ipc.worker_messages import ModelRunnerOutput, NewRow, SchedulerOutput


class WorkerRows:
    """Counts per row, kept by the rule that worker/batch/input_batch.py follows; every sampled token is 0.

    Attributes:
        num_computed_tokens: tokens computed since start, over all rows.
        num_recomputed_tokens: those among them that the same request had computed before a preemption.
    """

    def __init__(self, max_num_seqs: int, num_requests: int, cost: CostModel) -> None:
        self._cost = cost
        self._known = np.zeros(max_num_seqs, np.int64)
        self._computed = np.zeros(max_num_seqs, np.int64)
        self._request = np.zeros(max_num_seqs, np.int64)
        # How far each request had come when it last left a row.
        self._reached = np.zeros(num_requests, np.int64)
        self.num_computed_tokens = 0
        self.num_recomputed_tokens = 0

    def run(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """Compute a step; steps come in the order in which they were planned.

        Returns:
            The worker's output; its compute_s is what the cost model says.
        """
        for row in unpack_int32(step.freed_rows).tolist():
            self._reached[self._request[row]] = self._computed[row]
        for new_row in step.new_rows:
            self._enter(new_row)
        rows, num_tokens = unpack_int32(step.rows), unpack_int32(step.num_tokens).astype(np.int64)
        before = self._computed[rows]
        after = before + num_tokens
        self._computed[rows] = after
        self.num_computed_tokens += int(num_tokens.sum())
        samples = after == self._known[rows]
        sampling_rows = rows if samples.all() else rows[samples]
        self._known[sampling_rows] += 1
        packed = pack_int32(sampling_rows)
        num_moves = len(step.moves_from) // 4
        step_s = self._cost.step_s(_work(before, num_tokens)._replace(moves=num_moves))
        move_s = 1e-6 * self._cost.move_block_us * num_moves
        return ModelRunnerOutput(
            step.step, packed, bytes(len(packed)), compute_s=step_s, move_s=min(move_s, step_s)
        )

    def _enter(self, new_row: NewRow) -> None:
        row = new_row.row
        request = request_of(new_row.token_ids, new_row.num_prompt_tokens)
        self._request[row] = request
        self._known[row] = len(new_row.token_ids) // 4
        self._computed[row] = new_row.num_computed_tokens
        self.num_recomputed_tokens += max(0, int(self._reached[request]) - new_row.num_computed_tokens)


def _work(before: IntColumn, num_tokens: IntColumn) -> StepWork:
    context_tokens = int(before.sum() + num_tokens.sum())
    is_prefill = num_tokens > 1
    if not is_prefill.any():
        return StepWork(0, len(num_tokens), context_tokens, 0)
    before, chunks = before[is_prefill], num_tokens[is_prefill]
    pairs = before * chunks + chunks * (chunks + 1) // 2
    return StepWork(int(chunks.sum()), len(num_tokens) - len(chunks), context_tokens, int(pairs.sum()))
