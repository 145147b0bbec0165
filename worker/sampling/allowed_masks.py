"""Which tokens rows may draw by allowed_token_ids and grammar: a bit per token, where the kernel reads it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from splitserve.engine_core.ipc.worker_messages import RowError
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.row_faults import row_fault
from splitserve.worker.batch.sampling_state import Feature
from splitserve.worker.device.base import Device
from splitserve.worker.grammar.row_grammars import WORD_BITS, RowGrammars
from splitserve.worker.ops.columns import Index, Int32

# Features that a row's mask is made of.
_ALLOWING = Feature.ALLOWED_TOKEN_IDS | Feature.GRAMMAR


class RowMasks(NamedTuple):
    """The last arguments of SamplingOps.sample: masks int32 [N, ceil(V / 32)] and mask_rows int32 [S]."""

    masks: torch.Tensor
    mask_rows: torch.Tensor


class AllowedMasks:
    """A mask for each row of the batch; without a grammar it is sent to the device once.

    The table is allocated at first use: max_num_seqs masks of V / 8 bytes.
    """

    def __init__(self, device: Device, batch: InputBatch, grammars: RowGrammars) -> None:
        """Args: device of the logits; batch owns the rows, and is only told that their masks are there."""
        self._device = device
        self._state = batch.sampling
        self._grammars = grammars
        self._table: torch.Tensor | None = None

    def take(self, index: Index, vocab_size: int, faults: dict[int, RowError]) -> RowMasks:
        """Return the masks for sampling the rows of `index` [S] from logits of vocab_size tokens.

        `faults` gets the errors of rows whose mask raised an exception; such a row may draw anything.
        """
        state = self._state
        if self._table is None:
            shape = len(state.features), -(-vocab_size // WORD_BITS)
            self._table = torch.zeros(shape, dtype=torch.int32, device=self._device.torch_device)
        features = state.features[index]
        kinds = features & np.uint16(_ALLOWING)
        # With a grammar a mask is new in every step.
        stays = kinds == np.uint16(Feature.ALLOWED_TOKEN_IDS)
        for row in index[stays & state.is_mask_new[index]].tolist():
            try:
                mask = _mask_of(state.allowed_token_ids[row], self._table.shape[1])
            except Exception as error:
                faults[row] = row_fault(row, error)
                continue
            self._table[row].copy_(self._device.place([torch.from_numpy(mask)])[0])
        state.is_mask_new[index] = False
        constrained = index[kinds & np.uint16(Feature.GRAMMAR) != 0].tolist()
        if ready := [row for row in constrained if row not in faults]:
            self._place_grammars(ready, self._table)
        rows = np.where(kinds != 0, index, -1).astype(np.int32)
        (mask_rows,) = self._device.place([torch.from_numpy(rows)])
        return RowMasks(self._table, mask_rows)

    def _place_grammars(self, rows: list[int], table: torch.Tensor) -> None:
        masks = self._grammars.masks(rows)
        for mask, row in zip(masks, rows, strict=True):
            if row in self._state.allowed_token_ids:
                mask &= _mask_of(self._state.allowed_token_ids[row], masks.shape[1])
        placed, where = self._device.place([torch.from_numpy(masks), torch.tensor(rows)])
        table.index_copy_(0, where, placed)


def _mask_of(token_ids: Int32, num_words: int) -> Int32:
    """Bits of the token ids, int32 [num_words]."""
    bits = np.zeros(num_words * WORD_BITS, np.bool_)
    bits[token_ids] = True
    return np.packbits(bits, bitorder="little").view("<i4")
