"""Which tokens rows with allowed_token_ids may draw: a bit per token, where the sampling kernel reads it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from splitserve.engine_core.ipc.worker_messages import RowError
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.row_faults import row_fault
from splitserve.worker.batch.sampling_state import Feature
from splitserve.worker.device.base import Device
from splitserve.worker.ops.columns import Index, Int32

_WORD_BITS = 32


class RowMasks(NamedTuple):
    """The last arguments of SamplingOps.sample: masks int32 [N, ceil(V / 32)] and mask_rows int32 [S]."""

    masks: torch.Tensor
    mask_rows: torch.Tensor


class AllowedMasks:
    """A mask for each row of the batch, sent to the device when the row is first sampled.

    The table is allocated at first use: max_num_seqs masks of V / 8 bytes.
    """

    def __init__(self, device: Device, batch: InputBatch) -> None:
        """Args: device of the logits; batch owns the rows, and is only told that their masks are there."""
        self._device = device
        self._state = batch.sampling
        self._table: torch.Tensor | None = None

    def take(self, index: Index, vocab_size: int, faults: dict[int, RowError]) -> RowMasks:
        """Return the masks for sampling the rows of `index` [S] from logits of vocab_size tokens.

        `faults` gets the errors of rows whose mask raised an exception; such a row may draw anything.
        """
        state = self._state
        if self._table is None:
            shape = len(state.features), -(-vocab_size // _WORD_BITS)
            self._table = torch.zeros(shape, dtype=torch.int32, device=self._device.torch_device)
        has_mask = state.features[index] & np.uint16(Feature.ALLOWED_TOKEN_IDS) != 0
        for row in index[has_mask & state.is_mask_new[index]].tolist():
            try:
                mask = _mask_of(state.allowed_token_ids[row], self._table.shape[1])
            except Exception as error:
                faults[row] = row_fault(row, error)
                continue
            self._table[row].copy_(self._device.place([torch.from_numpy(mask)])[0])
        state.is_mask_new[index] = False
        rows = np.where(has_mask, index, -1).astype(np.int32)
        (mask_rows,) = self._device.place([torch.from_numpy(rows)])
        return RowMasks(self._table, mask_rows)


def _mask_of(token_ids: Int32, num_words: int) -> Int32:
    """Bits of the token ids, int32 [num_words]."""
    bits = np.zeros(num_words * _WORD_BITS, np.bool_)
    bits[token_ids] = True
    return np.packbits(bits, bitorder="little").view("<i4")
