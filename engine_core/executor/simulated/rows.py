"""What does a simulated worker know of its rows, and which tokens do they sample?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.executor.simulated.tokens import (
    TokenRule,
    TokenSampler,
    avoid,
    make_powers,
    mix,
    seed_of,
    sequence_state,
)
from splitserve.engine_core.ipc.worker_messages import NewRow

IntColumn = npt.NDArray[np.int64]


class SimulatedRows:
    """One entry per row in each column.

    Attributes:
        num_tokens, num_prompt, num_computed, max_computed: counts of tokens, int64 [max_rows]; see NewRow.
    """

    def __init__(self, rule: TokenRule, max_rows: int) -> None:
        self._rule = rule
        self._sampler = TokenSampler(rule)
        self._powers = make_powers(1024)
        # By row with min_tokens: the tokens that may not end it before.
        self._banned: dict[int, set[int]] = {}
        self.num_tokens = np.zeros(max_rows, np.int64)
        self.num_prompt = np.zeros(max_rows, np.int64)
        self.num_computed = np.zeros(max_rows, np.int64)
        self.max_computed = np.zeros(max_rows, np.int64)
        self._min_tokens = np.zeros(max_rows, np.int64)
        self._state = np.zeros(max_rows, np.uint64)
        self._seed_mix = np.zeros(max_rows, np.uint64)
        self._stops_at_eos = np.zeros(max_rows, np.bool_)

    def enter(self, new_row: NewRow, token_ids: npt.NDArray[np.int32]) -> None:
        """Fill a row."""
        row, sampling = new_row.row, new_row.sampling
        self.num_tokens[row] = len(token_ids)
        self.num_prompt[row] = new_row.num_prompt_tokens
        self.num_computed[row] = new_row.num_computed_tokens
        self.max_computed[row] = new_row.max_num_computed_tokens
        self.attend(row, token_ids)
        self._seed_mix[row] = mix(np.array([seed_of(sampling)], np.uint64))[0]
        self._stops_at_eos[row] = not sampling.ignore_eos
        self._min_tokens[row] = sampling.min_tokens
        if sampling.min_tokens:
            self._banned[row] = {*sampling.stop_token_ids, *self._rule.eos_token_ids}

    def free(self, row: int) -> None:
        """Forget a row."""
        self._banned.pop(row, None)

    def attend(self, row: int, token_ids: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """Let the row sample as if these were its tokens."""
        self._ensure_powers(len(token_ids))
        self._state[row] = sequence_state(token_ids, self._powers)

    def sample(self, rows: IntColumn, positions: IntColumn) -> npt.NDArray[np.int32]:
        """Return the tokens, int32 [n], that the rows [n] sample at these positions [n]."""
        indices = positions - self.num_prompt[rows]
        eos_allowed = self._stops_at_eos[rows] & (indices >= self._min_tokens[rows])
        token_ids = self._sampler.sample(self._state[rows], self._seed_mix[rows], indices, eos_allowed)
        masked = np.flatnonzero(indices < self._min_tokens[rows])
        if len(masked):
            token_ids = token_ids.copy()
            for i in masked.tolist():
                banned = self._banned[int(rows[i])]
                token_ids[i] = avoid(int(token_ids[i]), banned, self._rule.vocab_size)
        return token_ids

    def append(self, rows: IntColumn, positions: IntColumn, token_ids: npt.NDArray[np.int32]) -> None:
        """Append one token to each of the rows, whose lengths are `positions`; all [n]."""
        if len(positions):
            self._ensure_powers(int(positions.max()) + 1)
        self._state[rows] += (token_ids.astype(np.uint64) + np.uint64(1)) * self._powers[positions]
        self.num_tokens[rows] = positions + 1

    def foresee(self, row: int, count: int) -> list[int]:
        """Return the next `count` tokens of a row, which does not change."""
        rows, length = np.array([row]), self.num_tokens[[row]].copy()
        state, found = self._state[rows], list[int]()
        for i in range(count):
            token_ids = self.sample(rows, length + i)
            self.append(rows, length + i, token_ids)
            found.append(int(token_ids[0]))
        self._state[rows], self.num_tokens[rows] = state, length
        return found

    def chance(self, row: int, limit: int) -> int:
        """Return a number from 0 to limit - 1 that depends on the row's tokens alone."""
        return int(mix(self._state[[row]])[0] % np.uint64(limit))

    def _ensure_powers(self, count: int) -> None:
        if count > len(self._powers):
            self._powers = make_powers(2 * count)
