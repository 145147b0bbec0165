"""The persistent batch: the state of every row, and how step inputs are made from it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from splitserve.engine_core.errors import InvalidRequestError, WorkerError
from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, RowError, SchedulerOutput
from splitserve.worker.batch.block_tables import BlockTables
from splitserve.worker.batch.row_adapters import RowAdapters
from splitserve.worker.batch.row_faults import row_fault
from splitserve.worker.batch.runs import Runs
from splitserve.worker.batch.sampling_state import Feature, SamplingState
from splitserve.worker.batch.step_inputs import NO_ROWS, StepInputs
from splitserve.worker.batch.step_layout import StepLayout
from splitserve.worker.ops.columns import Array, BatchColumns, Index, Int32, Width, allocate


class BatchLimits(NamedTuple):
    """Sizes the batch is allocated for.

    block_size is in tokens, num_blocks is 0 without a KV cache, num_adapters counts the slots of adapters,
    group_windows are those of ModelInfo.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    num_blocks: int
    vocab_size: int
    num_adapters: int = 0
    group_windows: tuple[int, ...] = ()

    @property
    def num_window_groups(self) -> int:
        """Groups of layers behind the first; 0 if layers are alike."""
        return len(self.group_windows)


class InputBatch:
    """Owns the state of all rows, in arrays indexed by row; single-threaded.

    Attributes:
        limits: as given.
        columns: the arrays that a decode step reads; the next four are among them.
        tokens: int32 [max_num_seqs, max_model_len + 1] prompt and output tokens of each row; the extra
            column is for the token sampled after a prompt that fills the context.
        num_tokens, num_computed: int32 [max_num_seqs].
        occupied: bool [max_num_seqs].
        num_prompt_tokens: int32 [max_num_seqs].
        pools_tokens: bool [max_num_seqs], of whose tokens the vectors are wanted.
        adapters: of the rows.
        blocks: KV blocks that the rows hold.
        failures: errors of failed rows, which compute nothing until freed, except in a pipeline, whose other
            stages do not know that they failed. At most max_num_seqs entries.
        sampling: the rows' sampling parameters.
    """

    def __init__(self, limits: BatchLimits, eos_token_ids: list[int], is_pipelined: bool = False) -> None:
        """Allocate every column; pages are backed by memory as rows fill them.

        Args:
            limits: sizes to allocate.
            eos_token_ids: end-of-sequence ids of the model.
            is_pipelined: this is one of several pipeline stages, which must compute the same rows.
        """
        self.limits = limits
        num_rows = limits.max_num_seqs
        # One block more than the longest sequence: the scheduler may hold a block ahead of need.
        max_blocks = -(-limits.max_model_len // limits.block_size) + 1
        elements = {Width.TOKENS: limits.max_model_len + 1, Width.BLOCKS: max_blocks}
        self.columns = columns = allocate(BatchColumns[Array], num_rows, elements)
        self.tokens, self.num_tokens = columns.tokens, columns.num_tokens
        self.num_computed, self.occupied = columns.num_computed, columns.occupied
        self.num_prompt_tokens = np.zeros(num_rows, np.int32)
        self.pools_tokens = np.zeros(num_rows, np.bool_)
        self.adapters = RowAdapters(num_rows, limits.num_adapters)
        self.blocks = BlockTables(
            columns.block_table,
            columns.num_blocks,
            limits.block_size,
            limits.num_blocks,
            np.zeros((limits.num_window_groups, *columns.block_table.shape), np.int32),
        )
        self._has_cache = limits.num_blocks > 0
        self._layout = StepLayout(num_rows, self.blocks if self._has_cache else None)
        self.failures: dict[int, RowError] = {}
        # Rows whose content every stage rejects.
        self._refused: set[int] = set()
        self._is_pipelined = is_pipelined
        self.sampling = SamplingState(columns.features, limits.vocab_size, eos_token_ids)

    def apply(self, step: SchedulerOutput) -> None:
        """Apply the changes of a step: freed rows, new rows, new blocks, in this order.

        A new row that cannot be served is marked as failed.

        Raises:
            WorkerError: engine and worker disagree about rows or blocks.
        """
        if step.freed_rows:
            self._free(unpack_int32(step.freed_rows))
        for new in step.new_rows:
            self._add(new)
        if step.block_rows:
            rows = unpack_int32(step.block_rows)
            self._check_rows(rows)
            self.blocks.append(rows, unpack_int32(step.block_ids))

    def prepare(self, step: SchedulerOutput, num_drafts: Int32 | None = None) -> StepInputs:
        """Lay out the step's tokens and advance num_computed, without a Python loop over rows.

        Args:
            step: to lay out.
            num_drafts: int32 [max_num_seqs], tokens that stand behind the known ones of a row and are
                computed, too, without being counted; -1 for a row that has ended. None if there are none.

        Raises:
            WorkerError: a row is not in the batch, or would compute past its known tokens or its blocks, or
                less than all its tokens where there is no KV cache.
        """
        rows, num_new = unpack_int32(step.rows), unpack_int32(step.num_tokens)
        self._check_rows(rows)
        num_tokens = int(num_new.sum())
        if len(rows) != len(num_new) or num_tokens > self.limits.max_num_batched_tokens:
            raise WorkerError(f"step {step.step} is malformed or over the token budget")
        told = unpack_int32(step.last_token_ids) if step.last_token_ids else None
        errors: list[RowError] = []
        if self.failures:
            # The engine may have scheduled this step before it learnt that a row failed in the previous one.
            errors = [self.failures[row] for row in rows.tolist() if row in self.failures]
            alive = ~np.isin(rows, list(self._refused if self._is_pipelined else self.failures))
            rows, num_new = rows[alive], num_new[alive]
            told = told[alive] if told is not None else None
            num_tokens = int(num_new.sum())
        if told is not None:
            self._learn(rows, told)
        ended = NO_ROWS
        drafts: Int32 | None = None
        if num_drafts is not None:
            drafts = num_drafts[rows]
            ended, going = rows[drafts < 0], drafts >= 0
            rows, num_new, drafts = rows[going], num_new[going], drafts[going]
            num_tokens = int(num_new.sum() + drafts.sum())
        # Convert once: numpy converts an int32 index on every lookup, at 0.5 us each.
        index = rows.astype(np.intp)
        starts = self.num_computed[index]
        ends = starts + num_new
        self._check_progress(step.step, index, num_new, ends)
        self.num_computed[index] = ends
        sampling = (ends == self.num_tokens[index]).nonzero()[0]
        if drafts is not None:
            num_new, ends = num_new + drafts, ends + drafts
        layout = self._layout.decoding if num_tokens == len(rows) else self._layout.mixed
        tokens = layout(index, num_new, starts)
        inputs = StepInputs(
            rows=rows,
            starts=starts,
            token_ids=torch.from_numpy(self.tokens[tokens.rows, tokens.positions]),
            cu_seqlens=tokens.cu_seqlens,
            meta=self._layout.attention(index, ends, tokens)._replace(adapters=self.adapters.of(tokens.rows)),
            sampling=sampling,
            errors=errors,
            num_drafts=drafts,
            ended=ended,
        )
        return inputs if num_tokens == len(rows) else inputs._replace(outputs=self._outputs(inputs))

    def runs(self, inputs: StepInputs) -> Runs:
        """Return the runs of tokens that the rows of a step with drafts sample."""
        assert inputs.num_drafts is not None, "a step without drafts samples one token of a row"
        rows = inputs.rows[inputs.sampling]
        ends = inputs.cu_seqlens[inputs.sampling + 1]
        return Runs.of(rows, self.num_tokens[rows], inputs.num_drafts[inputs.sampling], ends)

    def append(self, rows: Int32, token_ids: Int32) -> None:
        """Append one sampled token to each of `rows`, which are distinct."""
        index = rows.astype(np.intp)
        lengths = self.num_tokens[index]
        self.tokens[index, lengths] = token_ids
        self.num_tokens[index] = lengths + 1

    def append_runs(self, rows: Int32, token_ids: Int32, lengths: Int32) -> None:
        """Append a run of tokens to each of `rows`; those that were drafts are computed already.

        Args:
            rows: int32 [R], distinct.
            token_ids: int32 [R], the last token of each run; the others were drafts, and stand there already.
            lengths: int32 [R], at least 1, of the runs.
        """
        index = rows.astype(np.intp)
        before = self.num_tokens[index]
        self.num_tokens[index] = after = before + lengths
        self.num_computed[index] = after - np.int32(1)
        self.tokens[index, after - 1] = token_ids

    def set_tokens(self, rows: Int32, places: Int32, token_ids: Int32) -> None:
        """Fill in the token at places[i] of rows[i], a placeholder until now; 0 if the row failed."""
        self.tokens[rows, places] = np.maximum(token_ids, 0)

    def take_back(self, rows: Int32) -> None:
        """Remove the placeholder token of each of `rows`, whose sampling failed."""
        self.num_tokens[rows] -= np.int32(1)

    def fail(self, error: RowError) -> None:
        """Mark a row as failed: it produces no more results, but stays occupied until the engine frees it."""
        self.failures[error.row] = error

    def _learn(self, rows: Int32, token_ids: Int32) -> None:
        """Append tokens sampled by another stage to the rows that have computed all their known tokens."""
        index = rows.astype(np.intp)
        behind = self.num_computed[index] == self.num_tokens[index]
        token_ids = token_ids[behind]
        # As unsigned numbers, negative ids are large, so one comparison is enough.
        if len(token_ids) and token_ids.view(np.uint32).max() >= self.limits.vocab_size:
            raise WorkerError("a token id of another stage is outside the vocabulary")
        self.append(rows[behind], token_ids)

    def _outputs(self, inputs: StepInputs) -> Int32 | None:
        sampling, cu_seqlens = inputs.sampling, inputs.cu_seqlens
        if len(self.sampling.rows_with(Feature.PROMPT_LOGPROBS, inputs.rows)):
            return None
        if inputs.num_drafts is not None and len(sampling):
            return self.runs(inputs).places
        # Kernels need at least one row: the last token stands in if no row is sampled.
        return cu_seqlens[sampling + 1 if len(sampling) else [-1]] - np.int32(1)

    def _free(self, rows: Int32) -> None:
        self._check_rows(rows)
        self.occupied[rows] = False
        self.adapters.free(rows)
        for row in rows.tolist():
            self.failures.pop(row, None)
            self._refused.discard(row)
            self.sampling.discard(row)

    def _add(self, new: NewRow) -> None:
        token_ids, block_ids = unpack_int32(new.token_ids), unpack_int32(new.block_ids)
        if not 0 <= new.row < len(self.occupied) or self.occupied[new.row]:
            raise WorkerError(f"row {new.row} is outside the batch or taken")
        self.adapters.enter(new.row, new.adapter)
        self.occupied[new.row] = True
        self.blocks.enter(new.row, new.first_block, block_ids)
        if self.limits.num_window_groups:
            self.blocks.enter_windows(new.row, new.first_window_block, unpack_int32(new.window_block_ids))
        self.num_prompt_tokens[new.row] = new.num_prompt_tokens
        self.num_computed[new.row] = new.num_computed_tokens
        try:
            self._layout.second_at[new.row] = new.second_at
            self.pools_tokens[new.row] = new.pools_tokens
            _check_tokens(token_ids, self.limits)
            self.sampling.add(new.row, new.sampling, new.num_prompt_tokens, len(token_ids))
        except InvalidRequestError as error:
            self._refuse(RowError(new.row, error.code, str(error), error.status))
            return
        except Exception as error:
            self._refuse(row_fault(new.row, error))
            return
        self.tokens[new.row, : len(token_ids)] = token_ids
        self.num_tokens[new.row] = len(token_ids)

    def _refuse(self, error: RowError) -> None:
        self.fail(error)
        self._refused.add(error.row)

    def _check_rows(self, rows: Int32) -> None:
        try:
            # As unsigned numbers, negative rows are large, so one comparison is enough.
            occupied = self.occupied[rows.view(np.uint32)]
        except IndexError:
            occupied = self.occupied[:0]
        if np.count_nonzero(occupied) != len(rows):
            raise WorkerError("a row is named that is not in the batch")

    def _check_progress(self, step: int, rows: Index, num_new: Int32, ends: Int32) -> None:
        # A row can compute no further than its known tokens and its blocks; without blocks, all or nothing.
        room = self.num_tokens[rows]
        if self._has_cache:
            room = np.minimum(room, self.blocks.room(rows))
            wrong = ((ends > room) | (num_new < 1)).nonzero()[0]
        else:
            wrong = ((ends != room) | (num_new != room)).nonzero()[0]
        if len(wrong):
            i = int(wrong[0])
            raise WorkerError(
                f"step {step}: row {rows[i]} would compute up to token {ends[i]}, but has "
                f"{self.num_tokens[rows[i]]} tokens and {self.blocks.num_blocks[rows[i]]} blocks"
            )


def _check_tokens(token_ids: Int32, limits: BatchLimits) -> None:
    """Check ids against the vocabulary here too, since the embedding is indexed with them."""
    if not 0 < len(token_ids) <= limits.max_model_len:
        raise InvalidRequestError(f"a sequence has 1 to {limits.max_model_len} tokens")
    if token_ids.min() < 0 or token_ids.max() >= limits.vocab_size:
        raise InvalidRequestError(f"token ids must be from 0 to {limits.vocab_size - 1}")
