"""The inputs of a captured decode step: tensors at fixed addresses, filled by one copy per step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from torch.nn.functional import pad

from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.step_graphs import RowMasks
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.device.base import Device
from splitserve.worker.ops.columns import (
    Column,
    ColumnsT,
    DrawColumns,
    LayoutColumns,
    SamplingColumns,
    declared,
)
from splitserve.worker.ops.interface import Kernels
from splitserve.worker.ops.matrix import Matrix
from splitserve.worker.parallel.group import RankGroup

# Columns with one value per row; they share one allocation, so that one copy transfers them.
_COLUMNS = (
    *declared(LayoutColumns).values(),
    *declared(SamplingColumns).values(),
    *declared(DrawColumns).values(),
)


class CudaStep:
    """One token of each of B rows.

    Attributes:
        token_ids: int32 [B], valid after feed().
        meta: layout for attention, with block tables as wide as the batch's.
        last_drawn: int32 [1 + max_num_seqs], the last token sampled for each row of the batch, shared by all
            sizes; the first entry is for padding rows. A step may begin before the host knows these tokens;
            it is given -1 in their place.
        drawn: int32 [B], valid after draw(); -1 where the logits hold a NaN.
    """

    def __init__(
        self,
        last_drawn: torch.Tensor,
        block_tables: torch.Tensor,
        num_rows: int,
        *,
        window_tables: torch.Tensor | None = None,
        has_adapters: bool = False,
    ) -> None:
        """Allocate the tensors, filled with padding.

        Args:
            last_drawn: see above.
            block_tables: int32 [B or more, blocks of the longest row], zero at first, shared by all sizes:
                steps never run concurrently, and 512 rows of 128k tokens take 16 MiB.
            num_rows: B.
            window_tables: int32 [G, B or more, blocks of the longest row], like block_tables; None without
                window groups.
            has_adapters: some rows may have one.
        """
        self._num_rows = num_rows
        self.last_drawn = last_drawn
        device = last_drawn.device
        self.token_ids = torch.zeros(num_rows, dtype=torch.int32, device=device)
        self._staging = torch.empty(num_rows * sum(map(_num_bytes, _COLUMNS)), dtype=torch.uint8)
        self._host = [view.numpy() for view in _views(self._staging, num_rows)]
        for values, column in zip(self._host, _COLUMNS, strict=True):
            values[:] = column.initial
        self._columns = self._staging.to(device, copy=True)
        views = iter(_views(self._columns, num_rows))
        self._layout = _take(LayoutColumns[torch.Tensor], views)
        self._sampling = _take(SamplingColumns[torch.Tensor], views)
        self._draw = _take(DrawColumns[torch.Tensor], views)
        # Steps of other sizes may have left a -1 there, which is not a valid block.
        block_tables[:num_rows, 0].zero_()
        self.meta = AttentionMetadata(
            positions=self._layout.positions,
            slot_mapping=self._layout.slot_mapping,
            block_tables=block_tables[:num_rows],
            cu_seqlens_q=torch.arange(num_rows + 1, dtype=torch.int32, device=device),
            seq_lens=self._layout.seq_lens,
            adapters=self._draw.adapters if has_adapters else None,
        )
        if window_tables is not None:
            window_tables[:, :num_rows, 0].zero_()
            slots = torch.full((len(window_tables), num_rows), -1, dtype=torch.int32, device=device)
            self.meta = self.meta._replace(window_slots=slots, window_tables=window_tables[:, :num_rows])
        self.drawn = torch.zeros(num_rows, dtype=torch.int32, device=device)

    def fill(self, device: Device, batch: InputBatch, inputs: StepInputs) -> None:
        """Enqueue the copies for a step of at most B rows, one token each."""
        meta, rows = inputs.meta, inputs.rows.astype(np.intp)
        values = (
            *inputs.layout(),
            *(column[rows] for column in batch.sampling.columns),
            *DrawColumns(batch.num_tokens[rows], rows + 1, batch.adapters.column[rows]),
        )
        count = len(rows)
        for host, column, new in zip(self._host, _COLUMNS, values, strict=True):
            host[:count] = new
            host[count:] = column.initial
        columns, tables = device.place([self._staging, meta.block_tables])
        self._columns.copy_(columns)
        # Entries beyond are never read, since a row's length bounds its blocks.
        self.meta.block_tables[:count, : tables.shape[1]].copy_(tables)
        if count < self._num_rows:
            self.meta.block_tables[count:, 0].zero_()
        if meta.window_slots is not None and meta.window_tables is not None:
            self._fill_windows(device, meta.window_slots, meta.window_tables)

    def _fill_windows(self, device: Device, slots: torch.Tensor, tables: torch.Tensor) -> None:
        """Enqueue the copies of slots [G, R] and tables [G, R, ...] of window groups."""
        assert self.meta.window_slots is not None
        assert self.meta.window_tables is not None
        count = slots.shape[1]
        slots, tables = device.place([slots, tables])
        self.meta.window_slots[:, :count].copy_(slots)
        self.meta.window_slots[:, count:].fill_(-1)
        self.meta.window_tables[:, :count, : tables.shape[2]].copy_(tables)
        self.meta.window_tables[:, count:, 0].zero_()

    def feed(self) -> None:
        """Assemble the input tokens: those the host knows, and those sampled by the previous step."""
        known = self._layout.token_ids
        torch.where(known < 0, self.last_drawn[self._draw.places], known, out=self.token_ids)

    def draw(
        self,
        ops: Kernels[Matrix],
        logits: torch.Tensor | None,
        group: RankGroup | None,
        masks: RowMasks | tuple[()] = (),
    ) -> None:
        """Sample a token for each row.

        Args:
            ops: kernels of the device.
            logits: float32 [B, V]; None on ranks that receive the tokens from rank 0.
            group: the ranks that shard each layer; None if this rank holds all of it.
            masks: of the rows that are not padding; of none if empty.
        """
        if isinstance(masks, RowMasks) and (num_padded := self._num_rows - len(masks.mask_rows)):
            masks = RowMasks(masks.masks, pad(masks.mask_rows, (0, num_padded), value=-1))
        if logits is not None:
            ops.sampling.sample(self.drawn, logits, *self._sampling, self._draw.positions, *masks)
        if group is not None:
            group.settle(self.drawn)
        self.last_drawn.index_copy_(0, self._draw.places, self.drawn)


def _num_bytes(column: Column) -> int:
    return np.dtype(column.dtype).itemsize


def _views(memory: torch.Tensor, num_rows: int) -> list[torch.Tensor]:
    """The columns of R rows as views of uint8 memory, in the order of _COLUMNS."""
    views: dict[int, torch.Tensor] = {}
    begin = 0
    # The widest dtypes come first, so that all are aligned.
    for i in sorted(range(len(_COLUMNS)), key=lambda i: -_num_bytes(_COLUMNS[i])):
        end = begin + num_rows * _num_bytes(_COLUMNS[i])
        views[i] = memory[begin:end].view(torch.from_numpy(_COLUMNS[i].allocate(0)).dtype)
        begin = end
    return [views[i] for i in range(len(_COLUMNS))]


def _take(columns: type[ColumnsT], views: Iterator[torch.Tensor]) -> ColumnsT:
    return columns._make(islice(views, len(columns._fields)))
