"""Mean, sum or maximum over the states of a prompt's tokens, which may be computed in several steps."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from splitserve.engine_core.checkpoint.pooling import PoolingMode
from splitserve.worker.batch.step_inputs import StepInputs
from splitserve.worker.device.base import Device
from splitserve.worker.ops.columns import Int32

_Kind = Literal["sum", "weighted_sum", "max"]
_KINDS: dict[PoolingMode, _Kind] = {
    "mean": "sum",
    "max": "max",
    "weightedmean": "weighted_sum",
    "mean_sqrt_len": "sum",
}
REDUCTIONS: tuple[PoolingMode, ...] = tuple(_KINDS)


class Reduction:
    """Reduces states of rows as they come, token by token, so that chunks change no bit; single-threaded.

    Args:
        device: of the states.
        mode: one of REDUCTIONS.
        num_rows: of the batch.
    """

    def __init__(self, device: Device, mode: PoolingMode, num_rows: int) -> None:
        self._device = device
        self._mode = mode
        self._num_rows = num_rows
        # Of each row's tokens so far; what it holds of a row counts until the row begins anew.
        self._totals: torch.Tensor | None = None

    def reduce(self, states: torch.Tensor, inputs: StepInputs) -> torch.Tensor:
        """Take the states of a step; return what came of the rows that are done, float32 [n, H].

        Args:
            states: [T, H], of all its tokens.
            inputs: its layout.
        """
        if self._totals is None:
            self._totals = torch.zeros(self._num_rows, states.shape[1], device=states.device)
        done, counts = inputs.sampling, inputs.starts + np.diff(inputs.cu_seqlens)
        columns = (inputs.cu_seqlens, inputs.rows, inputs.starts, inputs.rows[done])
        placed = self._device.place(
            [
                # Copies: what came in a message cannot be written, which torch demands.
                *(torch.from_numpy(column.astype(np.int32)) for column in columns),
                torch.from_numpy(self._divisors(counts[done])),
            ]
        )
        ends, rows, positions, done_rows, divisors = placed
        kind = _KINDS[self._mode]
        self._device.ops.sampling.pool_rows(self._totals, states, ends, rows, positions, kind)
        return self._totals[done_rows] / divisors[:, None]

    def _divisors(self, num_tokens: Int32) -> npt.NDArray[np.float32]:
        """Return what the totals of rows of so many tokens are divided by."""
        counts = num_tokens.astype(np.float64)
        match self._mode:
            case "mean":
                divisors = counts
            case "weightedmean":
                divisors = counts * (counts + 1) / 2
            case "mean_sqrt_len":
                divisors = np.sqrt(counts)
            case _:
                divisors = np.ones_like(counts)
        return divisors.astype(np.float32)
