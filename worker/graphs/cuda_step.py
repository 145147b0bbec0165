"""The inputs of a captured decode step: tensors that stay where they are, filled by one copy per step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from splitserve.worker.attention.metadata import AttentionMetadata
from splitserve.worker.batch.input_batch import InputBatch, StepInputs
from splitserve.worker.device.base import Device
from splitserve.worker.ops.interface import Kernels
from splitserve.worker.ops.matrix import Matrix
from splitserve.worker.parallel.group import RankGroup


class _Column(NamedTuple):
    """One value per row, and what rows have that a step is padded with.

    A padded row attends to one position of block 0, writes nothing and draws a token that nobody takes.
    """

    dtype: type[np.generic]
    padding: float


# The wide ones come first, so that all are aligned. In the order of CudaStep's tensors.
_COLUMNS = (
    _Column(np.int64, 0),  # seeds
    _Column(np.int64, 1),  # position of the token to be drawn
    _Column(np.int64, 0),  # place in CudaStep.last_drawn
    _Column(np.int32, 0),  # token ids
    _Column(np.int32, 0),  # positions
    _Column(np.int32, -1),  # slots
    _Column(np.int32, 1),  # sequence lengths
    _Column(np.int32, 0),  # top_k
    _Column(np.float32, 0),  # temperature
    _Column(np.float32, 1),  # top_p
    _Column(np.float32, 0),  # min_p
)


class CudaStep:
    """One token of each of B rows.

    Attributes:
        token_ids: int32 [B] after feed().
        meta: layout for attention; its block tables are as wide as the batch's.
        last_drawn: int32 [1 + max_num_seqs], the token each row of the batch drew last, shared by all sizes;
            the first place is the padded rows'. A step may begin before the host knows these tokens: it is
            given -1 in their place.
        drawn: int32 [B] after draw(); -1 where the logits hold a NaN.
    """

    def __init__(self, last_drawn: torch.Tensor, block_tables: torch.Tensor, num_rows: int) -> None:
        """Take the memory, filled with padding.

        Args:
            last_drawn: see above.
            block_tables: int32 [B or more, blocks of the longest row], zero at first, shared by all sizes:
                steps never run side by side, and 512 rows of 128k tokens take 16 MiB.
            num_rows: B.
        """
        self._num_rows = num_rows
        self.last_drawn = last_drawn
        device = last_drawn.device
        self.token_ids = torch.zeros(num_rows, dtype=torch.int32, device=device)
        sizes = [num_rows * np.dtype(column.dtype).itemsize for column in _COLUMNS]
        ends = np.cumsum([0, *sizes]).tolist()
        self._staging = torch.empty(ends[-1], dtype=torch.uint8)
        bytes_of = self._staging.numpy()
        self._host = [
            bytes_of[begin : begin + size].view(column.dtype)
            for column, begin, size in zip(_COLUMNS, ends, sizes, strict=False)
        ]
        for values, column in zip(self._host, _COLUMNS, strict=True):
            values[:] = column.padding
        self._columns = self._staging.to(device, copy=True)
        views = [
            self._columns[begin : begin + size].view(_torch_dtype(column))
            for column, begin, size in zip(_COLUMNS, ends, sizes, strict=False)
        ]
        self._seeds, self._draw_positions, self._places, self._known, *rest = views
        positions, slots, seq_lens, *filters = rest
        self._top_k, self._temperature, self._top_p, self._min_p = filters
        # Steps of other sizes may have left a -1 there, which is no block.
        block_tables[:num_rows, 0].zero_()
        self.meta = AttentionMetadata(
            positions=positions,
            slot_mapping=slots,
            block_tables=block_tables[:num_rows],
            cu_seqlens_q=torch.arange(num_rows + 1, dtype=torch.int32, device=device),
            seq_lens=seq_lens,
        )
        self.drawn = torch.zeros(num_rows, dtype=torch.int32, device=device)

    def fill(self, device: Device, batch: InputBatch, inputs: StepInputs) -> None:
        """Copy a step of at most B rows, one token each; the copies are enqueued."""
        meta, state = inputs.meta, batch.sampling
        rows = inputs.rows.astype(np.intp)
        values: tuple[npt.NDArray[np.generic], ...] = (
            state.seed[rows],
            batch.num_tokens[rows],
            rows + 1,
            inputs.token_ids.numpy(),
            meta.positions.numpy(),
            meta.slot_mapping.numpy(),
            meta.seq_lens.numpy(),
            state.top_k[rows],
            state.temperature[rows],
            state.top_p[rows],
            state.min_p[rows],
        )
        count = len(rows)
        for host, column, new in zip(self._host, _COLUMNS, values, strict=True):
            host[:count] = new
            host[count:] = column.padding
        columns, tables = device.place([self._staging, meta.block_tables])
        self._columns.copy_(columns)
        # Entries beyond are never read: a row's blocks end with its length.
        self.meta.block_tables[:count, : tables.shape[1]].copy_(tables)
        if count < self._num_rows:
            self.meta.block_tables[count:, 0].zero_()

    def feed(self) -> None:
        """Put the tokens of the step together: those that the host knows, and those drawn just before."""
        torch.where(self._known < 0, self.last_drawn[self._places], self._known, out=self.token_ids)

    def draw(self, ops: Kernels[Matrix], logits: torch.Tensor | None, group: RankGroup | None) -> None:
        """Sample a token for each row.

        Args:
            ops: of the device.
            logits: float32 [B, V]; None on ranks that hear from rank 0 what it has sampled.
            group: ranks that part each layer; None for one that has all of it.
        """
        if logits is not None:
            ops.sampling.sample(
                self.drawn,
                logits,
                self._temperature,
                self._top_k,
                self._top_p,
                self._min_p,
                self._seeds,
                self._draw_positions,
            )
        if group is not None:
            group.settle(self.drawn)
        self.last_drawn.index_copy_(0, self._places, self.drawn)


def _torch_dtype(column: _Column) -> torch.dtype:
    return torch.from_numpy(np.empty(0, column.dtype)).dtype
