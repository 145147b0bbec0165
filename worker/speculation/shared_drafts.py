"""How do all ranks compute the same drafts? Rank 0 drafts, and tells the others before the step.

They could not draft for themselves: rank 0 alone has grammars and the draft model, and how much is drafted
depends on what its steps took. Where the engine plans no drafts, nothing is exchanged.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from splitserve.engine_core.ipc.codec import unpack_int32
from splitserve.engine_core.ipc.worker_messages import SchedulerOutput
from splitserve.worker.batch.input_batch import InputBatch
from splitserve.worker.device.base import Device
from splitserve.worker.ops.columns import Int32
from splitserve.worker.parallel.group import RankGroup


class SharedDrafts:
    """The drafts of a batch that the ranks of a group share; used by the worker's thread.

    Args:
        group: the ranks.
        device: this rank's device.
        batch: this rank's batch.
    """

    def __init__(self, group: RankGroup, device: Device, batch: InputBatch) -> None:
        self._group = group
        self._device = device
        self._batch = batch
        self._num_drafts: Int32 = np.zeros(len(batch.num_tokens), np.int32)

    def share(self, step: SchedulerOutput, num_drafts: Int32 | None) -> Int32 | None:
        """Return what rank 0 has drafted for a step, which then stands behind the rows' tokens here, too.

        Args:
            step: the same on all ranks; its changes have been taken in.
            num_drafts: int32 [max_num_seqs] by row of the step, as Speculator.draft has it; what other ranks
                say counts only for a step without max_drafts.

        Raises:
            RankLostError: another rank is gone or did not respond in time.
        """
        rows = unpack_int32(step.rows)
        # As unsigned numbers, negative rows are large; the batch refuses such a step on every rank.
        is_sound = len(rows) and rows.view(np.uint32).max() < len(self._num_drafts)
        if not step.max_drafts or not is_sound:
            return num_drafts
        index = rows.astype(np.intp)
        told = np.zeros((len(rows), 1 + step.max_drafts), np.int32)
        if self._group.rank == 0 and num_drafts is not None:
            told[:, 0] = num_drafts[index]
            is_draft, places = self._places(index, told)
            told[:, 1:][is_draft] = self._batch.tokens[places]
        (placed,) = self._device.place([torch.from_numpy(told.reshape(-1))])
        self._group.settle(placed)
        if self._group.rank == 0:
            return num_drafts
        told = self._device.fetch(placed).reshape(told.shape)
        is_draft, places = self._places(index, told)
        self._batch.tokens[places] = told[:, 1:][is_draft]
        self._num_drafts[index] = told[:, 0]
        return self._num_drafts if told[:, 0].any() else None

    def _places(
        self, index: npt.NDArray[np.intp], told: Int32
    ) -> tuple[npt.NDArray[np.bool_], tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
        """Return which of told[:, 1:] are drafts, and where in the batch's tokens they stand."""
        behind = np.arange(told.shape[1] - 1)
        is_draft = behind < told[:, :1]
        ends = self._batch.num_tokens[index].astype(np.intp)
        return is_draft, (index.repeat(is_draft.sum(axis=1)), (ends[:, None] + behind)[is_draft])
