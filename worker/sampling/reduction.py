"""Mean, sum or maximum over the states of a prompt's tokens, which may be computed in several steps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.checkpoint.pooling import PoolingMode

Float32 = npt.NDArray[np.float32]
REDUCTIONS: tuple[PoolingMode, ...] = ("mean", "max", "weightedmean", "mean_sqrt_len")


class Reduction:
    """Reduces states of rows as they come, token by token, so that chunks change no bit; single-threaded."""

    def __init__(self, mode: PoolingMode) -> None:
        """Args: mode is one of REDUCTIONS."""
        self._mode = mode
        # Of rows whose prompts are not done, and of rows that were given up in the middle; at most all rows.
        self._kept: dict[int, Float32] = {}

    def add(self, row: int, start: int, states: Float32, *, is_last: bool) -> Float32 | None:
        """Take the next tokens of a row; return what comes of all of them, [H], if these are the last ones.

        Args:
            row: of the batch.
            start: position of the first of them; 0 forgets what there was of the row.
            states: [n, H], n >= 1.
            is_last: the prompt ends with them.
        """
        num_tokens = start + len(states)
        if self._mode == "weightedmean":
            states = states * np.arange(start + 1, num_tokens + 1, dtype=np.float32)[:, None]
        earlier = self._kept.pop(row, None)
        # There is none behind a prompt that was done, where only a warm-up goes on.
        if start and earlier is not None:
            states = np.concatenate([earlier[None], states])
        # numpy takes the rows in their order.
        operation = np.maximum if self._mode == "max" else np.add
        reduced: Float32 = operation.reduce(states, axis=0)
        if is_last:
            return self._scaled(reduced, num_tokens)
        self._kept[row] = reduced
        return None

    def _scaled(self, reduced: Float32, num_tokens: int) -> Float32:
        match self._mode:
            case "mean":
                return reduced / np.float32(num_tokens)
            case "weightedmean":
                return reduced / np.float32(num_tokens * (num_tokens + 1) / 2)
            case "mean_sqrt_len":
                return reduced / np.float32(num_tokens**0.5)
        return reduced
