"""Which tokens rows may draw by allowed_token_ids and grammar: a bit per token, where the kernel reads it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from splitserve.engine_core.ipc.worker_messages import RowError
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.batch.row_faults import row_fault
from splitserve.worker.batch.sampling_state import MASKED, Feature
from splitserve.worker.batch.step_graphs import RowMasks
from splitserve.worker.device.base import Device
from splitserve.worker.grammar.draft_masks import MAX_DRAFT_MASKS
from splitserve.worker.ops.columns import Index, Int32

WORD_BITS = 32


def mask_table(batch: InputBatch) -> Int32:
    """Return masks of all rows, and behind them those of drafts, all zero; only those in use take memory.

    int32 [max_num_seqs + MAX_DRAFT_MASKS, ceil(V / 32)].
    """
    limits = batch.limits
    num_masks = limits.max_num_seqs + MAX_DRAFT_MASKS
    return np.zeros((num_masks, -(-limits.vocab_size // WORD_BITS)), np.int32)


class AllowedMasks:
    """A mask for each row of the batch; without a grammar it is made and sent to the device once.

    The device's own table is allocated when a row without a grammar first needs it: as many masks as there
    are, of V / 8 bytes. Without such rows a step's masks travel with it.
    """

    def __init__(self, device: Device, batch: InputBatch, masks: Int32) -> None:
        """Build it.

        Args:
            device: of the logits.
            batch: owns the rows, and is only told that their masks are there.
            masks: from mask_table(), where those of grammars are found.
        """
        self._device = device
        self._state = batch.sampling
        self._masks = masks
        self._is_shared = device.torch_device.type == "cpu"
        self._table = torch.from_numpy(masks) if self._is_shared else None

    def take(self, index: Index, places: Index, faults: dict[int, RowError]) -> RowMasks:
        """Return the masks for sampling rows, whose grammars are settled.

        Args:
            index: [S], the rows.
            places: [S], where the mask of each stands; other than the row's number only behind drafts of a
                row with a grammar.
            faults: gets the errors of rows whose mask raised an exception; such a row may draw anything.
        """
        state = self._state
        kinds = state.features[index] & np.uint16(MASKED)
        has_ids = kinds & np.uint16(Feature.ALLOWED_TOKEN_IDS) != 0
        # With a grammar a mask is new in every step.
        is_new = (kinds & np.uint16(Feature.GRAMMAR) != 0) | (has_ids & state.is_mask_new[index])
        which = has_ids & is_new
        self._allow(index[which].tolist(), places[which].tolist(), faults)
        fresh = places[is_new]
        if not self._is_shared and len(fresh) == np.count_nonzero(kinds) and not has_ids.any():
            return self._take_along(fresh, is_new)
        if self._table is None:
            self._table = torch.zeros(self._masks.shape, dtype=torch.int32, device=self._device.torch_device)
        if not self._is_shared and len(fresh):
            placed = self._device.place([torch.from_numpy(self._masks[fresh]), torch.from_numpy(fresh)])
            self._table.index_copy_(0, placed[1], placed[0])
        found = np.where(kinds != 0, places, -1).astype(np.int32)
        (mask_rows,) = self._device.place([torch.from_numpy(found)])
        return RowMasks(self._table, mask_rows)

    def _take_along(self, fresh: Index, has_mask: npt.NDArray[np.bool_]) -> RowMasks:
        """Return masks that are new in every step in memory of this step alone, sent by one copy."""
        mask_rows = np.full(len(has_mask), -1, np.int32)
        mask_rows[has_mask] = np.arange(len(fresh))
        masks = torch.from_numpy(self._masks[fresh])
        return RowMasks(*self._device.place([masks, torch.from_numpy(mask_rows)]))

    def _allow(self, rows: Sequence[int], places: Sequence[int], faults: dict[int, RowError]) -> None:
        """Put the allowed_token_ids of rows into their masks."""
        state = self._state
        for row, place in zip(rows, places, strict=True):
            try:
                mask = _mask_of(state.allowed_token_ids[row], self._masks.shape[1])
            except Exception as error:
                faults[row] = row_fault(row, error)
                continue
            if state.features[row] & Feature.GRAMMAR:
                self._masks[place] &= mask
            else:
                self._masks[place] = mask
            state.is_mask_new[row] = False


def _mask_of(token_ids: Int32, num_words: int) -> Int32:
    """Bits of the token ids, int32 [num_words]."""
    bits = np.zeros(num_words * WORD_BITS, np.bool_)
    bits[token_ids] = True
    return np.packbits(bits, bitorder="little").view("<i4")
