"""The inputs and outputs of decode steps with a fixed number of rows, at fixed addresses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.sampling_state import MASKED
from splitserve.worker.batch.step_graphs import RowMasks
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.ops.columns import Array, BatchColumns, Int32, LayoutColumns, SamplingColumns, allocate
from splitserve.worker.ops.cpu import ops
from splitserve.worker.ops.decode import StepTensors, append_tokens, decode_inputs, take_rows, window_inputs
from splitserve.worker.parallel.group import RankGroup


class DecodeStep:
    """One token of each of R rows: InputBatch.prepare, the sampler's lookups and append, done by kernels.

    Attributes:
        rows: int32 [R], written by the caller before lay_out().
        row_bytes: the same memory, little-endian.
        drawn: int32 [R], valid after draw(); -1 where the logits hold a NaN.
    """

    def __init__(
        self,
        batch: InputBatch,
        block_tables: torch.Tensor,
        group: RankGroup | None,
        *,
        window_tables: torch.Tensor | None = None,
        has_adapters: bool = False,
    ) -> None:
        """Allocate the other inputs and outputs.

        Args:
            batch: the rows to decode; its columns never move.
            block_tables: int32 [R, as wide as the batch's]; in use from lay_out() to the end of the step.
            group: the ranks that shard each layer; None if this rank holds all of it. Rank 0 samples.
            window_tables: int32 [G, R, as above], in use as these; None without window groups.
            has_adapters: some rows may have one.
        """
        self._group = group
        # Ranks that do not sample have no matchers.
        self._known_features = int(MASKED) if group is None else 0
        self._masks: RowMasks | None = None
        self._batch = batch
        num_rows = len(block_tables)
        self._rows, self._drawn = _ints(num_rows), _ints(num_rows)
        layout = LayoutColumns[torch.Tensor](*_tensors(allocate(LayoutColumns[Array], num_rows)))
        self._tensors = StepTensors(layout, block_tables, _ints(2))
        self._adapter_column = torch.from_numpy(batch.adapters.column) if has_adapters else None
        self._columns = BatchColumns[torch.Tensor](*_tensors(batch.columns))
        self._meta = AttentionMetadata(
            positions=layout.positions,
            slot_mapping=layout.slot_mapping,
            block_tables=block_tables,
            cu_seqlens_q=torch.arange(num_rows + 1, dtype=torch.int32),
            seq_lens=layout.seq_lens,
            adapters=_ints(num_rows) if has_adapters else None,
            window_tables=window_tables,
            window_slots=None if window_tables is None else _ints(len(window_tables), num_rows),
        )
        # Made once: a recording keeps no tensor alive.
        groups = self._meta.of_groups()[1:]
        columns = [torch.from_numpy(table) for table in batch.blocks.window_tables]
        self._windows = list(zip(columns, groups, batch.limits.group_windows, strict=True))
        self._sampling = list(_tensors(batch.sampling.columns))
        gathered = allocate(SamplingColumns[Array], num_rows)
        self._gathered = SamplingColumns[torch.Tensor](*_tensors(gathered))
        self.rows: Int32 = self._rows.numpy()
        self.row_bytes = self.rows.data.cast("B")
        self.drawn: Int32 = self._drawn.numpy()
        self._flags: Int32 = self._tensors.flags.numpy()

    @property
    def needs_sampler(self) -> bool:
        """Whether a row last laid out has a feature that draw() does not know, or does not sample."""
        return bool(self._flags.item(0) & ~self._known_features)

    @property
    def needs_masks(self) -> bool:
        """Whether one of the rows last laid out has a mask."""
        return bool(self._flags.item(0) & MASKED)

    @property
    def num_failed(self) -> int:
        """Number of rows for which draw() found no token and appended none."""
        return self._flags.item(1)

    def lay_out(self) -> tuple[torch.Tensor, AttentionMetadata]:
        """Return the model's inputs for the next token of each row, and advance num_computed.

        Raises:
            ValueError: a row is not in the batch, or would compute past its tokens or blocks.
        """
        limits = self._batch.limits
        decode_inputs(self._rows, self._columns, self._tensors, limits.block_size, limits.max_model_len)
        for column, group, window in self._windows:
            out = group.slot_mapping, group.block_tables
            window_inputs(self._rows, group.seq_lens, column, out, limits.block_size, window)
        if self._meta.adapters is not None and self._adapter_column is not None:
            take_rows(self._meta.adapters, self._adapter_column, self._rows)
        return self._tensors.layout.token_ids, self._meta

    def set_masks(self, masks: RowMasks) -> None:
        """Take the masks of the rows laid out, for draw(); masks.masks must be the same in every call."""
        if self._masks is None:
            self._masks = RowMasks(masks.masks, torch.empty_like(self._rows))
        self._masks.mask_rows.copy_(masks.mask_rows)

    def draw(self, logits: torch.Tensor | None, is_masked: bool = False) -> None:
        """Sample and append a token for each row laid out; needs_sampler must be False.

        Args:
            logits: float32 [R, V]; None on ranks that receive the tokens from rank 0.
            is_masked: use what set_masks() was given.
        """
        if logits is not None:
            self._sample(logits, (self._masks or ()) if is_masked else ())
        if self._group is not None:
            self._group.settle(self._drawn)
        append_tokens(
            self._rows, self._drawn, self._columns.tokens, self._columns.num_tokens, self._tensors.flags
        )

    def _sample(self, logits: torch.Tensor, masks: tuple[torch.Tensor, ...]) -> None:
        for gathered, column in zip(self._gathered, self._sampling, strict=True):
            take_rows(gathered, column, self._rows)
        # The position of the token to be sampled follows all known ones.
        positions = self._tensors.layout.seq_lens
        ops.sampling.sample(self._drawn, logits, *self._gathered, positions, *masks)

    def inputs(self) -> StepInputs:
        """The inputs of the rows last laid out, as InputBatch.prepare returns them."""
        ends = self._meta.seq_lens.numpy()
        return StepInputs(
            rows=self.rows,
            starts=self._meta.positions.numpy(),
            token_ids=self._tensors.layout.token_ids,
            cu_seqlens=self._meta.cu_seqlens_q.numpy(),
            meta=self._meta,
            sampling=(ends == self._batch.num_tokens[self.rows]).nonzero()[0],
            errors=[],
        )


def _ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def _tensors(columns: Iterable[Array]) -> Iterator[torch.Tensor]:
    """View the arrays as tensors on the same memory."""
    return map(torch.from_numpy, columns)
