"""A worker without a model: keeps rows as a real one does and samples tokens by a TokenRule.

Steady decode rows are computed in columns, so thousands of rows per step stay cheap; with `verify` every
step is also played on a ShadowKV and sent through the wire's encoding.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.errors import DeviceMemoryError, WorkerError
from splitserve.engine_core.executor.simulated.logprobs import SimulatedLogprobs
from splitserve.engine_core.executor.simulated.model import SimulatedModel
from splitserve.engine_core.executor.simulated.shadow_kv import ShadowKV
from splitserve.engine_core.executor.simulated.tokens import (
    TokenSampler,
    avoid,
    make_powers,
    mix,
    seed_of,
    sequence_state,
)
from splitserve.engine_core.ipc.codec import (
    encode,
    from_worker_decoder,
    pack_int32,
    to_worker_decoder,
    unpack_int32,
)
from splitserve.engine_core.ipc.worker_messages import (
    CompileGrammar,
    GrammarCompiled,
    KVCacheReady,
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
        self._sampler = TokenSampler(model.rule)
        self._shadow: ShadowKV | None = None
        self._num_places = 0
        self._powers = make_powers(1024)
        self._logprobs = SimulatedLogprobs(model.rule.vocab_size)
        # By row with min_tokens: the tokens that may not end it before.
        self._banned: dict[int, set[int]] = {}
        self._failed: dict[int, RowError] = {}
        self._occupied: set[int] = set()
        num_rows = model.max_rows
        self._num_tokens = np.zeros(num_rows, np.int64)
        self._num_prompt = np.zeros(num_rows, np.int64)
        self._num_computed = np.zeros(num_rows, np.int64)
        self._min_tokens = np.zeros(num_rows, np.int64)
        self._state = np.zeros(num_rows, np.uint64)
        self._seed_mix = np.zeros(num_rows, np.uint64)
        self._stops_at_eos = np.zeros(num_rows, np.bool_)
        # Tokens known to a pipeline stage that does not sample.
        self._num_told = np.zeros(num_rows, np.int64)

    def load(self) -> WorkerReady:
        """Return what WorkerReady says; there is nothing to load."""
        model = self._model
        return WorkerReady(model.info(), model.block_bytes, model.available_bytes, 0.0)

    def init_kv_cache(self, num_blocks: int, num_host_blocks: int = 0) -> KVCacheReady:
        """Take note of the numbers of blocks in the pool and in the CPU offload."""
        self._num_places = num_blocks + num_host_blocks
        if self._model.verify:
            self._shadow = ShadowKV(
                num_blocks, self._model.block_size, self._model.sliding_window, num_host_blocks
            )
        return KVCacheReady(num_blocks)

    def compile(self, message: CompileGrammar) -> GrammarCompiled:
        """Refuse: made-up tokens follow no grammar."""
        return GrammarCompiled(message.number, "a simulated worker follows no grammar")

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
        if step.last_token_ids and self._shadow is not None:
            self._check_told(self._shadow, rows, num_tokens, unpack_int32(step.last_token_ids))
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
        return self._compute(step.step, rows, num_tokens, errors)

    def _compute(
        self,
        step: int,
        rows: IntColumn,
        num_tokens: IntColumn,
        errors: list[RowError],
    ) -> ModelRunnerOutput:
        start = self._num_computed[rows]
        end = start + num_tokens
        if (end > self._num_tokens[rows]).any():
            raise WorkerError(f"step {step} computes more tokens than a row has")
        if self._shadow is not None:
            self._play(self._shadow, rows, start, num_tokens)
        prompt_logprobs = self._logprobs.of_prompts(rows, start, end)
        self._num_computed[rows] = end
        sampling = rows[end == self._num_tokens[rows]]
        positions = self._num_tokens[sampling]
        token_ids = self._sample(sampling, positions)
        logprobs = self._logprobs.of_tokens(sampling, positions, token_ids)
        self._append_tokens(sampling, positions, token_ids)
        return ModelRunnerOutput(
            step, pack_int32(sampling), pack_int32(token_ids), logprobs, prompt_logprobs, errors
        )

    def _sample(self, rows: IntColumn, positions: IntColumn) -> npt.NDArray[np.int32]:
        indices = positions - self._num_prompt[rows]
        eos_allowed = self._stops_at_eos[rows] & (indices >= self._min_tokens[rows])
        token_ids = self._sampler.sample(self._state[rows], self._seed_mix[rows], indices, eos_allowed)
        masked = np.flatnonzero(indices < self._min_tokens[rows])
        if len(masked):
            token_ids = token_ids.copy()
            for i in masked.tolist():
                banned = self._banned[int(rows[i])]
                token_ids[i] = avoid(int(token_ids[i]), banned, self._model.rule.vocab_size)
        return token_ids

    def _append_tokens(self, rows: IntColumn, positions: IntColumn, token_ids: npt.NDArray[np.int32]) -> None:
        if len(positions):
            self._ensure_powers(int(positions.max()) + 1)
        self._state[rows] += (token_ids.astype(np.uint64) + np.uint64(1)) * self._powers[positions]
        self._num_tokens[rows] = positions + 1
        if self._shadow is not None:
            for row, token_id in zip(rows.tolist(), token_ids.tolist(), strict=True):
                self._shadow.append_token(row, token_id)

    def _play(
        self,
        shadow: ShadowKV,
        rows: IntColumn,
        start: IntColumn,
        num_tokens: IntColumn,
    ) -> None:
        """Compute on the shadow; tokens are then sampled from what was attended, not from the row's state."""
        for row, first, count in zip(rows.tolist(), start.tolist(), num_tokens.tolist(), strict=True):
            attended = shadow.compute(row, first, count)
            if len(attended) == self._num_tokens[row]:
                self._ensure_powers(len(attended))
                self._state[row] = sequence_state(attended, self._powers)

    def _check_told(
        self,
        shadow: ShadowKV,
        rows: IntColumn,
        num_tokens: IntColumn,
        last_token_ids: npt.NDArray[np.int32],
    ) -> None:
        """Check as the first stage of a pipeline would, which knows only the tokens it is sent."""
        for row, count, token_id in zip(
            rows.tolist(), num_tokens.tolist(), last_token_ids.tolist(), strict=True
        ):
            if row in self._failed:
                continue
            if self._num_computed[row] == self._num_told[row]:
                shadow.check_last_token(row, token_id)
                self._num_told[row] += 1
            if self._num_computed[row] + count > self._num_told[row]:
                raise WorkerError(f"row {row} is to compute a token that the first stage does not know")

    def _enter(self, new_row: NewRow) -> None:
        row, sampling = new_row.row, new_row.sampling
        if row in self._occupied or not 0 <= row < self._model.max_rows:
            raise WorkerError(f"row {row} is new but was not free")
        token_ids = unpack_int32(new_row.token_ids)
        if not 0 <= new_row.num_computed_tokens < len(token_ids):
            raise WorkerError(
                f"row {row}: {new_row.num_computed_tokens} of {len(token_ids)} tokens are computed"
            )
        self._ensure_powers(len(token_ids))
        self._occupied.add(row)
        self._num_tokens[row] = len(token_ids)
        self._num_told[row] = len(token_ids)
        self._num_prompt[row] = new_row.num_prompt_tokens
        self._num_computed[row] = new_row.num_computed_tokens
        self._state[row] = sequence_state(token_ids, self._powers)
        self._seed_mix[row] = mix(np.array([seed_of(sampling)], np.uint64))[0]
        self._stops_at_eos[row] = not sampling.ignore_eos
        self._min_tokens[row] = sampling.min_tokens
        if sampling.min_tokens:
            self._banned[row] = {*sampling.stop_token_ids, *self._model.rule.eos_token_ids}
        self._logprobs.enter(row, sampling, token_ids[: new_row.num_prompt_tokens])
        if self._shadow is not None:
            block_ids = unpack_int32(new_row.block_ids).tolist()
            self._shadow.new_row(row, token_ids.tolist(), block_ids, new_row.first_block)

    def _free(self, row: int) -> None:
        if row not in self._occupied:
            raise WorkerError(f"row {row} is freed but was free")
        self._occupied.remove(row)
        self._banned.pop(row, None)
        self._logprobs.free(row)
        self._failed.pop(row, None)
        if self._shadow is not None:
            self._shadow.free_row(row)

    def _append_blocks(self, step: SchedulerOutput) -> None:
        rows, block_ids = unpack_int32(step.block_rows).tolist(), unpack_int32(step.block_ids).tolist()
        if len(rows) != len(block_ids):
            raise WorkerError(f"step {step.step}: {len(block_ids)} blocks for {len(rows)} rows")
        if self._shadow is not None:
            for row, block_id in zip(rows, block_ids, strict=True):
                self._shadow.append_block(row, block_id)

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

    def _ensure_powers(self, count: int) -> None:
        if count > len(self._powers):
            self._powers = make_powers(2 * count)
