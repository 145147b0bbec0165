"""A worker without a model: keeps rows as a real one does and samples tokens by a TokenRule.

Steady decode rows are computed in columns, so thousands of rows per step stay cheap; with `verify` every
step is also played on a ShadowKV and sent through the wire's encoding.
"""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.errors import DeviceMemoryError, WorkerError
from splitserve.engine_core.executor.simulated.drafted_rows import DraftedRows, Run
from splitserve.engine_core.executor.simulated.first_stage import FirstStage, packed_drafts
from splitserve.engine_core.executor.simulated.logprobs import SimulatedLogprobs
from splitserve.engine_core.executor.simulated.model import SimulatedModel
from splitserve.engine_core.executor.simulated.rows import SimulatedRows
from splitserve.engine_core.executor.simulated.shadow_groups import ShadowGroups
from splitserve.engine_core.executor.simulated.shadow_kv import ShadowKV
from splitserve.engine_core.ipc.codec import (
    encode,
    from_worker_decoder,
    pack_int32,
    to_worker_decoder,
    unpack_int32,
)
from splitserve.engine_core.ipc.worker_messages import (
    AdapterLoaded,
    CompileGrammar,
    GrammarCompiled,
    KVCacheReady,
    LoadAdapter,
    MemoryReleased,
    ModelRunnerOutput,
    NewRow,
    RowError,
    SchedulerOutput,
    WorkerReady,
)

IntColumn = npt.NDArray[np.int64]


class SimulatedWorker:
    """Rows in columns; implements engine_core.executor.inproc.InprocWorker."""

    def __init__(self, model: SimulatedModel) -> None:
        self._model = model
        self._shadow: ShadowGroups | None = None
        self._num_places = 0
        self._logprobs = SimulatedLogprobs(model.rule.vocab_size)
        self._failed: dict[int, RowError] = {}
        self._occupied: set[int] = set()
        self._rows = SimulatedRows(model.rule, model.max_rows)
        self._drafts = False
        self._stage = FirstStage(self._rows, model.max_rows)

    def load(self) -> WorkerReady:
        """Return what WorkerReady says; there is nothing to load."""
        model = self._model
        return WorkerReady(model.info(), model.block_bytes, model.available_bytes, 0.0)

    def init_kv_cache(self, num_blocks: int, num_host_blocks: int = 0) -> KVCacheReady:
        """Take note of the numbers of blocks in the pool and in the CPU offload."""
        self._num_places = num_blocks + num_host_blocks
        if self._model.verify:
            window = self._model.sliding_window
            first = ShadowKV(num_blocks, self._model.block_size, window, num_host_blocks)
            self._shadow = ShadowGroups(first, self._model.group_windows)
        return KVCacheReady(num_blocks)

    def release_kv_cache(self) -> MemoryReleased:
        """Forget rows and blocks."""
        for row in sorted(self._occupied):
            self._free(row)
        self._shadow = None
        self._num_places = 0
        return MemoryReleased()

    def compile(self, message: CompileGrammar) -> GrammarCompiled:
        """Refuse: made-up tokens follow no grammar."""
        return GrammarCompiled(message.number, "a simulated worker follows no grammar")

    def load_adapter(self, message: LoadAdapter) -> AdapterLoaded:
        """Take any adapter, without a look at its files: it changes no made-up token."""
        return AdapterLoaded(message.number, sha256(message.path.encode()).hexdigest())

    def execute(
        self, step: SchedulerOutput, failing: frozenset[int] = frozenset(), lacks_memory: bool = False
    ) -> ModelRunnerOutput:
        """Run one step.

        Args:
            step: the step.
            failing: places in its row column that fail with a RowError, now and until they are freed.
            lacks_memory: all of them fail like that, for want of memory.

        Raises:
            WorkerError: the step breaks the protocol.
        """
        if not self._model.verify:
            return self._execute(step, failing, lacks_memory)
        decoded = to_worker_decoder.decode(encode(step))
        assert isinstance(decoded, SchedulerOutput)
        output = from_worker_decoder.decode(encode(self._execute(decoded, failing, lacks_memory)))
        assert isinstance(output, ModelRunnerOutput)
        return output

    def _execute(
        self, step: SchedulerOutput, failing: frozenset[int], lacks_memory: bool
    ) -> ModelRunnerOutput:
        for row in unpack_int32(step.freed_rows).tolist():
            self._free(row)
        for new_row in step.new_rows:
            self._enter(new_row)
        if step.block_rows or step.block_ids:
            self._append_blocks(step)
        if step.moves_from or step.moves_to:
            self._move_blocks(step)
        rows = unpack_int32(step.rows).astype(np.int64)
        num_tokens = unpack_int32(step.num_tokens).astype(np.int64)
        self._check_columns(rows, num_tokens)
        told: dict[int, list[int]] = {}
        if step.last_token_ids and self._shadow is not None:
            told = self._stage.take(step, rows, num_tokens, self._failed, self._shadow)
        for i in failing:
            if i < len(rows):
                self._failed[int(rows[i])] = RowError(int(rows[i]), "simulated_fault", "scripted")
        if lacks_memory:
            code, status = DeviceMemoryError.code, DeviceMemoryError.status
            for row in rows.tolist():
                self._failed.setdefault(row, RowError(row, code, "scripted", status))
        errors = [self._failed[row] for row in rows.tolist() if row in self._failed]
        if errors:
            if self._shadow is not None:
                for error in errors:
                    self._shadow.abandon(error.row)
            good = ~np.isin(rows, list(self._failed))
            rows, num_tokens = rows[good], num_tokens[good]
        # From the first drafts on, rows may be ahead of what the engine knows of them.
        self._drafts |= self._shadow is not None and (step.max_drafts > 0 or step.drafts is not None)
        if self._drafts:
            return self._compute_runs(step, rows, num_tokens, errors, told)
        return self._compute(step.step, rows, num_tokens, errors)

    def _compute(
        self,
        step: int,
        rows: IntColumn,
        num_tokens: IntColumn,
        errors: list[RowError],
    ) -> ModelRunnerOutput:
        known = self._rows
        start = known.num_computed[rows]
        end = start + num_tokens
        if (end > known.num_tokens[rows]).any():
            raise WorkerError(f"step {step} computes more tokens than a row has")
        if self._shadow is not None:
            self._play(self._shadow, rows, start, num_tokens)
        prompt_logprobs = self._logprobs.of_prompts(rows, start, end)
        known.num_computed[rows] = end
        sampling = rows[end == known.num_tokens[rows]]
        positions = known.num_tokens[sampling]
        token_ids = known.sample(sampling, positions)
        logprobs = self._logprobs.of_tokens(sampling, positions, token_ids)
        known.append(sampling, positions, token_ids)
        if self._shadow is not None:
            for row, token_id in zip(sampling.tolist(), token_ids.tolist(), strict=True):
                self._shadow.append_token(row, token_id)
        return ModelRunnerOutput(
            step, pack_int32(sampling), pack_int32(token_ids), logprobs, prompt_logprobs, errors
        )

    def _compute_runs(
        self,
        step: SchedulerOutput,
        rows: IntColumn,
        num_tokens: IntColumn,
        errors: list[RowError],
        told: dict[int, list[int]],
    ) -> ModelRunnerOutput:
        """Compute rows that may draft, or may have ended by their drafts; those that sample one by one.

        In a pipeline `told` are the drafts of this step, and others are made for the next one.
        """
        known = self._rows
        going = known.num_computed[rows] < known.max_computed[rows]
        ended = rows[~going]
        rows, num_tokens = rows[going], num_tokens[going]
        samples = known.num_computed[rows] + num_tokens == known.num_tokens[rows]
        plain = self._compute(step.step, rows[~samples], num_tokens[~samples], errors)
        assert self._shadow is not None, "only a worker that verifies drafts"
        drafted = DraftedRows(known, self._shadow, self._model.rule.vocab_size)
        runs: list[Run] = []
        logprobs, prompt_logprobs = list(plain.logprobs), list(plain.prompt_logprobs)
        for row, count in zip(rows[samples].tolist(), num_tokens[samples].tolist(), strict=True):
            start = known.num_computed[[row]]
            prompt_logprobs += self._logprobs.of_prompts(np.array([row]), start, start + count)
            drafts = drafted.fitting(row, step.max_drafts) if step.drafts is None else told.get(row, [])
            run = drafted.compute(row, count, drafts)
            token_ids = np.array(run.token_ids, np.int32)
            places = np.arange(len(token_ids)) + known.num_tokens[row] - len(token_ids)
            logprobs += self._logprobs.of_tokens(np.full(len(token_ids), row), places, token_ids)
            runs.append(run)
        runs += [Run([], 0)] * len(ended)
        following = [
            drafted.drafts(row, step.max_drafts) for row in [*rows[samples].tolist(), *ended.tolist()]
        ]
        return ModelRunnerOutput(
            step.step,
            pack_int32(np.concatenate([rows[samples], ended])),
            pack_int32([token_id for run in runs for token_id in run.token_ids]),
            logprobs,
            prompt_logprobs,
            errors,
            run_lengths=pack_int32([len(run.token_ids) for run in runs]),
            num_drafts=pack_int32([run.num_drafts for run in runs]),
            # Of every eight steps, four in a row need not draft.
            draft_rest=max(0, 4 - step.step % 8),
            next_drafts=None if step.drafts is None else packed_drafts(following),
        )

    def _play(
        self,
        shadow: ShadowGroups,
        rows: IntColumn,
        start: IntColumn,
        num_tokens: IntColumn,
    ) -> None:
        """Compute on the shadow; tokens are then sampled from what was attended, not from the row's state."""
        for row, first, count in zip(rows.tolist(), start.tolist(), num_tokens.tolist(), strict=True):
            attended = shadow.compute(row, first, count)
            if len(attended) == self._rows.num_tokens[row]:
                self._rows.attend(row, attended)

    def _enter(self, new_row: NewRow) -> None:
        row, sampling = new_row.row, new_row.sampling
        if row in self._occupied or not 0 <= row < self._model.max_rows:
            raise WorkerError(f"row {row} is new but was not free")
        token_ids = unpack_int32(new_row.token_ids)
        if not 0 <= new_row.num_computed_tokens < len(token_ids):
            raise WorkerError(
                f"row {row}: {new_row.num_computed_tokens} of {len(token_ids)} tokens are computed"
            )
        self._occupied.add(row)
        self._stage.enter(row, len(token_ids))
        self._rows.enter(new_row, token_ids)
        self._logprobs.enter(row, sampling, token_ids[: new_row.num_prompt_tokens])
        if self._shadow is not None:
            self._shadow.new_row(new_row)

    def _free(self, row: int) -> None:
        if row not in self._occupied:
            raise WorkerError(f"row {row} is freed but was free")
        self._occupied.remove(row)
        self._rows.free(row)
        self._logprobs.free(row)
        self._failed.pop(row, None)
        if self._shadow is not None:
            self._shadow.free_row(row)

    def _append_blocks(self, step: SchedulerOutput) -> None:
        rows, block_ids = unpack_int32(step.block_rows).tolist(), unpack_int32(step.block_ids).tolist()
        if len(rows) * (len(self._model.group_windows) + 1) != len(block_ids):
            raise WorkerError(f"step {step.step}: {len(block_ids)} blocks for {len(rows)} rows")
        if self._shadow is not None:
            self._shadow.append_blocks(rows, block_ids)

    def _move_blocks(self, step: SchedulerOutput) -> None:
        sources, targets = unpack_int32(step.moves_from).tolist(), unpack_int32(step.moves_to).tolist()
        if len(sources) != len(targets):
            raise WorkerError(f"step {step.step}: moves from {len(sources)} places to {len(targets)}")
        for place in [*sources, *targets]:
            if not 0 <= place < self._num_places:
                raise WorkerError(f"step {step.step}: a move names place {place} of {self._num_places}")
        if self._shadow is not None:
            for source, target in zip(sources, targets, strict=True):
                self._shadow.move(source, target)

    def _check_columns(self, rows: IntColumn, num_tokens: IntColumn) -> None:
        if len(rows) == 0 or len(rows) != len(num_tokens) or num_tokens.min() < 1:
            raise WorkerError(f"a step needs rows with at least one token each, got {rows} with {num_tokens}")
        if not self._occupied.issuperset(rows.tolist()) or len(set(rows.tolist())) != len(rows):
            raise WorkerError(f"a step computes free rows or a row twice: {rows}")
