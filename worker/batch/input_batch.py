"""The persistent batch: the state of every row, and how step inputs are made from it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from splitserve.engine_core.errors import InvalidRequestError, WorkerError
from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.worker_messages import NewRow, RowError, SchedulerOutput
from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.batch.block_tables import BlockTables
from splitserve.worker.batch.row_faults import row_fault
from splitserve.worker.batch.sampling_state import Feature, SamplingState
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.ops.columns import Array, BatchColumns, Index, Int32, Width, allocate


class BatchLimits(NamedTuple):
    """Sizes the batch is allocated for; block_size is in tokens, num_blocks is 0 without a KV cache."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    num_blocks: int
    vocab_size: int


class _Tokens(NamedTuple):
    """The layout of a step's T tokens of R rows.

    Attributes:
        rows, positions: [T], the row of each token and its index within the sequence.
        cu_seqlens: int32 [R + 1].
    """

    rows: Index
    positions: Index
    cu_seqlens: Int32


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
        self._second_at = np.zeros(num_rows, np.int32)
        self.pools_tokens = np.zeros(num_rows, np.bool_)
        self.blocks = BlockTables(
            columns.block_table, columns.num_blocks, limits.block_size, limits.num_blocks
        )
        self._decode_cu_seqlens = np.arange(num_rows + 1, dtype=np.int32)
        self.failures: dict[int, RowError] = {}
        # Rows whose content every stage rejects.
        self._refused: set[int] = set()
        self._is_pipelined = is_pipelined
        self._has_cache = limits.num_blocks > 0
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

    def prepare(self, step: SchedulerOutput) -> StepInputs:
        """Lay out the step's tokens and advance num_computed, without a Python loop over rows.

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
        # Convert once: numpy converts an int32 index on every lookup, at 0.5 us each.
        index = rows.astype(np.intp)
        starts = self.num_computed[index]
        ends = starts + num_new
        self._check_progress(step.step, index, num_new, ends)
        self.num_computed[index] = ends
        layout = self._decode_layout if num_tokens == len(rows) else self._mixed_layout
        tokens = layout(index, num_new, starts)
        sampling = (ends == self.num_tokens[index]).nonzero()[0]
        return StepInputs(
            rows=rows,
            starts=starts,
            token_ids=torch.from_numpy(self.tokens[tokens.rows, tokens.positions]),
            cu_seqlens=tokens.cu_seqlens,
            meta=self._attention(index, ends, tokens),
            sampling=sampling,
            errors=errors,
            outputs=None if num_tokens == len(rows) else self._outputs(rows, sampling, tokens.cu_seqlens),
        )

    def append(self, rows: Int32, token_ids: Int32) -> None:
        """Append one sampled token to each of `rows`, which are distinct."""
        index = rows.astype(np.intp)
        lengths = self.num_tokens[index]
        self.tokens[index, lengths] = token_ids
        self.num_tokens[index] = lengths + 1

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

    def _outputs(self, rows: Int32, sampling: npt.NDArray[np.intp], cu_seqlens: Int32) -> Int32 | None:
        if len(self.sampling.rows_with(Feature.PROMPT_LOGPROBS, rows)):
            return None
        # Kernels need at least one row: the last token stands in if no row is sampled.
        return cu_seqlens[sampling + 1 if len(sampling) else [-1]] - np.int32(1)

    def _decode_layout(self, index: Index, num_new: Int32, starts: Int32) -> _Tokens:
        """The layout with one token per row."""
        return _Tokens(index, starts.astype(np.intp), self._decode_cu_seqlens[: len(index) + 1])

    def _mixed_layout(self, index: Index, num_new: Int32, starts: Int32) -> _Tokens:
        """The layout with num_new[i] >= 1 tokens of row index[i]."""
        cu_seqlens = np.zeros(len(index) + 1, np.int32)
        num_new.cumsum(out=cu_seqlens[1:])
        first = np.repeat(starts - cu_seqlens[:-1], num_new)
        return _Tokens(np.repeat(index, num_new), first + np.arange(len(first)), cu_seqlens)

    def _attention(self, index: Index, ends: Int32, tokens: _Tokens) -> AttentionMetadata:
        if not self._has_cache:
            return self._whole_rows(index, ends, tokens)
        return AttentionMetadata(
            positions=torch.from_numpy(tokens.positions.astype(np.int32)),
            slot_mapping=torch.from_numpy(self.blocks.slots(tokens.rows, tokens.positions)),
            block_tables=torch.from_numpy(self.blocks.of(index, ends)),
            cu_seqlens_q=torch.from_numpy(tokens.cu_seqlens),
            seq_lens=torch.from_numpy(ends),
        )

    def _whole_rows(self, index: Index, ends: Int32, tokens: _Tokens) -> AttentionMetadata:
        """The layout of a model without a KV cache, which may tell the two texts of a row apart."""
        second_at = self._second_at[tokens.rows]
        return AttentionMetadata(
            positions=torch.from_numpy(tokens.positions.astype(np.int32)),
            slot_mapping=torch.empty(0, dtype=torch.int32),
            block_tables=torch.empty(len(index), 0, dtype=torch.int32),
            cu_seqlens_q=torch.from_numpy(tokens.cu_seqlens),
            seq_lens=torch.from_numpy(ends),
            token_types=torch.from_numpy(
                ((second_at > 0) & (tokens.positions >= second_at)).astype(np.int32)
            ),
        )

    def _free(self, rows: Int32) -> None:
        self._check_rows(rows)
        self.occupied[rows] = False
        for row in rows.tolist():
            self.failures.pop(row, None)
            self._refused.discard(row)
            self.sampling.discard(row)

    def _add(self, new: NewRow) -> None:
        token_ids, block_ids = unpack_int32(new.token_ids), unpack_int32(new.block_ids)
        if not 0 <= new.row < len(self.occupied) or self.occupied[new.row]:
            raise WorkerError(f"row {new.row} is outside the batch or taken")
        self.occupied[new.row] = True
        self.blocks.enter(new.row, new.first_block, block_ids)
        self.num_prompt_tokens[new.row] = new.num_prompt_tokens
        self.num_computed[new.row] = new.num_computed_tokens
        try:
            self._second_at[new.row] = new.second_at
            self.pools_tokens[new.row] = new.pools_tokens
            self._check_tokens(token_ids)
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

    def _check_tokens(self, token_ids: Int32) -> None:
        """Check ids against the vocabulary here too, since the embedding is indexed with them."""
        if not 0 < len(token_ids) <= self.limits.max_model_len:
            raise InvalidRequestError(f"a sequence has 1 to {self.limits.max_model_len} tokens")
        if token_ids.min() < 0 or token_ids.max() >= self.limits.vocab_size:
            raise InvalidRequestError(f"token ids must be from 0 to {self.limits.vocab_size - 1}")

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
