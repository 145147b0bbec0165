"""How all ranks agree on what rank 0 sampled and on failures of any rank, so that they stay in sync.

Only rank 0 holds the logits and samples; the others append the tokens it sends. If each rank sampled for
itself, equal logits would not be enough: different processors may round the exponentials differently, and a
single different token would leave the ranks with different sequences for good.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from splitserve.engine_core.ipc.worker_messages import RowError
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.device.base import Device
from splitserve.worker.ops.columns import Int32
from splitserve.worker.parallel.group import RankGroup

# The sampling kernel's negative tokens, -1 and -2, are failures here as well: one rank may replay what
# another runs eagerly.
_FAILED = -1
_NOTHING = -3


class Chosen(NamedTuple):
    """The outcome of a step's rows; empty on ranks other than 0.

    Attributes:
        rows, token_ids: int32 [m], the rows that were given a token, or a run, and its last token.
        lengths: int32 [m], tokens of each run.
        failed: rows that failed.
    """

    rows: Int32
    token_ids: Int32
    lengths: Int32
    failed: list[int]


class Agreement:
    """Broadcasts a step's outcome from rank 0 to the others, an int32 per row of the step, two with drafts.

    Args:
        group: the ranks.
        device: this rank's device.
        batch: this rank's batch.
    """

    def __init__(self, group: RankGroup, device: Device, batch: InputBatch) -> None:
        self._group = group
        self._device = device
        self._batch = batch
        # Indexed by row of the batch; only the rows of the step are valid.
        self._outcome: Int32 = np.empty(len(batch.num_tokens), np.int32)
        self._lengths: Int32 = np.empty(len(batch.num_tokens), np.int32)

    def settle(self, rows: Int32, chosen: Chosen, *, has_drafts: bool = False) -> None:
        """Send the outcome on rank 0, whose batch already has it; apply it to the batch on the others.

        Args:
            rows: int32 [R], the rows of the step without those that had failed before.
            chosen: what this rank sampled.
            has_drafts: rows may have been given runs of tokens; all ranks say the same.

        Raises:
            RankLostError: another rank is gone or did not respond in time.
        """
        index = rows.astype(np.intp)
        if self._group.rank == 0:
            self._outcome[index] = _NOTHING
            self._outcome[chosen.rows] = chosen.token_ids
            self._outcome[chosen.failed] = _FAILED
            self._lengths[chosen.rows] = chosen.lengths
        columns = [self._outcome[index], self._lengths[index]] if has_drafts else [self._outcome[index]]
        (settled,) = self._device.place([torch.from_numpy(np.concatenate(columns))])
        self._group.settle(settled)
        if self._group.rank != 0:
            outcome, *lengths = self._device.fetch(settled).reshape(len(columns), -1)
            self._take_over(rows, outcome, *lengths)

    def _take_over(self, rows: Int32, outcome: Int32, lengths: Int32 | None = None) -> None:
        has_token = outcome >= 0
        if lengths is None:
            self._batch.append(rows[has_token], outcome[has_token])
        else:
            self._batch.append_runs(rows[has_token], outcome[has_token], lengths[has_token])
        for row in rows[~has_token & (outcome != _NOTHING)].tolist():
            self._batch.fail(RowError(row, "failed_on_rank_0", "rank 0 tells the engine why"))


def all_could(group: RankGroup, device: Device, could: bool) -> bool:
    """Return whether every rank succeeded at something, each reporting its own success.

    Args:
        group: the ranks; every one must call this.
        device: this rank's device, which is synchronised.
        could: whether this rank succeeded.

    Raises:
        RankLostError: another rank is gone or did not respond in time.
    """
    (own,) = device.place([torch.full((1, 1), float(not could))])
    num_failed = device.empty((1, 1), torch.float32)
    group.sum_into(num_failed, own)
    return not device.fetch(num_failed).any()
