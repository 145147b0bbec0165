"""How all ranks learn what rank 0 has sampled, and what one of them could not do, so that none goes astray.

Rank 0 alone holds the logits and chooses; the others append what it names. Were each rank to sample for
itself, equal logits would not do: processors of other kinds may round the exponentials differently, and one
different token would leave the ranks with different sequences for ever.
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
    """What came of a step's rows; on ranks other than 0 it is empty.

    Attributes:
        rows, token_ids: int32 [m], the rows that got a token, and their tokens.
        failed: rows that failed.
    """

    rows: Int32
    token_ids: Int32
    failed: list[int]


class Agreement:
    """Carries one step's outcome from rank 0 to the others; one int32 per row of the step.

    Args:
        group: the ranks.
        device: this rank's.
        batch: this rank's.
    """

    def __init__(self, group: RankGroup, device: Device, batch: InputBatch) -> None:
        self._group = group
        self._device = device
        self._batch = batch
        # By row of the batch; only those of the step count.
        self._outcome: Int32 = np.empty(len(batch.num_tokens), np.int32)

    def settle(self, rows: Int32, chosen: Chosen) -> None:
        """Tell the outcome on rank 0, whose batch has it already; take it over on the others.

        Args:
            rows: int32 [R] of the step, those that had failed before left out.
            chosen: by this rank.

        Raises:
            RankLostError: another rank is gone or does not take part in time.
        """
        index = rows.astype(np.intp)
        if self._group.rank == 0:
            self._outcome[index] = _NOTHING
            self._outcome[chosen.rows] = chosen.token_ids
            self._outcome[chosen.failed] = _FAILED
        (outcome,) = self._device.place([torch.from_numpy(self._outcome[index])])
        self._group.settle(outcome)
        if self._group.rank != 0:
            self._take_over(rows, self._device.fetch(outcome))

    def _take_over(self, rows: Int32, outcome: Int32) -> None:
        has_token = outcome >= 0
        self._batch.append(rows[has_token], outcome[has_token])
        for row in rows[~has_token & (outcome != _NOTHING)].tolist():
            self._batch.fail(RowError(row, "failed_on_rank_0", "rank 0 tells the engine why"))


def all_could(group: RankGroup, device: Device, could: bool) -> bool:
    """Tell all ranks whether this one could do something, and return whether all of them could.

    Args:
        group: the ranks; every one has to ask.
        device: this rank's; waited for.
        could: of this rank.

    Raises:
        RankLostError: another rank is gone or does not take part in time.
    """
    (own,) = device.place([torch.full((1, 1), float(not could))])
    num_failed = device.empty((1, 1), torch.float32)
    group.sum_into(num_failed, own)
    return not device.fetch(num_failed).any()
