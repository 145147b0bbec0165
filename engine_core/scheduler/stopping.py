"""Which sampled tokens end their request? EOS, its stop token ids, or a repetition loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.request import Request
from splitserve.engine_core.scheduler.running import IntColumn, RunningRows


class StopRules:
    """Looks up whole columns of tokens in tables over the vocabulary.

    The stop token ids of all running requests are counted in one table, so a step needs Python code for a row
    only if it sampled a token that is a stop token of some running request.
    """

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._is_eos = np.zeros(vocab_size, np.bool_)
        self._is_eos[[token_id for token_id in eos_token_ids if 0 <= token_id < vocab_size]] = True
        self._num_watching = np.zeros(vocab_size, np.int32)
        self._may_stop = self._is_eos.copy()
        self._rows_detecting: dict[Request, int] = {}

    @property
    def detects_repetition(self) -> bool:
        """Whether any running request asked for repetition detection; if none did, steps skip it."""
        return bool(self._rows_detecting)

    def knows(self, token_ids: npt.NDArray[np.int32]) -> bool:
        """Whether all token ids are in the vocabulary; a look-up is cheaper than two reductions."""
        try:
            # Negative ids become large ones and fail the look-up.
            self._is_eos[token_ids.view(np.uint32)]
        except IndexError:
            return False
        return True

    def watch(self, request: Request) -> None:
        """Register a request that starts to run: its stop token ids, and its row if it detects repetition."""
        self._count(request, 1)
        if request.repetition is not None:
            self._rows_detecting[request] = request.row

    def unwatch(self, request: Request) -> None:
        """Undo watch() for a request that no longer runs."""
        self._count(request, -1)
        self._rows_detecting.pop(request, None)

    def matches(
        self, running: RunningRows, rows: IntColumn, positions: IntColumn, token_ids: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.intp]:
        """Return the indices of the tokens that end their request, ascending.

        Args:
            running: the columns.
            rows: [n].
            positions: [n], position of each token in its sequence; tokens below min_tokens never match.
            token_ids: [n].
        """
        candidates = self._may_stop[token_ids].nonzero()[0]
        if len(candidates) == 0:
            return candidates
        rows, token_ids = rows[candidates], token_ids[candidates]
        ends = self._is_eos[token_ids] & running.stops_at_eos[rows]
        for i in (running.has_stop_ids[rows] & ~ends).nonzero()[0].tolist():
            ends[i] = int(token_ids[i]) in running.request_at(int(rows[i])).sampling.stop_token_ids
        return candidates[ends & (positions[candidates] >= running.first_stop_at[rows])]

    def repeating(
        self, running: RunningRows, rows: IntColumn, token_ids: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.intp]:
        """Feed new tokens to the repetition detectors, each once; return the indices that complete a loop.

        Args:
            running: the columns.
            rows: [n].
            token_ids: [n], about to be emitted.
        """
        found = np.zeros(len(rows), np.bool_)
        for i in np.flatnonzero(np.isin(rows, list(self._rows_detecting.values()))).tolist():
            tail = running.request_at(int(rows[i])).repetition
            found[i] = tail is not None and tail.push(int(token_ids[i]))
        return found.nonzero()[0]

    def stop_token_id(self, request: Request, token_id: int) -> int | None:
        """Return the token if it is one of the request's own stop ids, None if it matched as EOS."""
        is_eos = bool(self._is_eos[token_id]) and not request.sampling.ignore_eos
        return None if is_eos else token_id

    def ends_after(self, request: Request) -> tuple[bool, int | None]:
        """Whether the last token of a resumed request had ended it already, and the stop id that matched."""
        num_known = request.num_stored_tokens
        position = num_known - 1
        if position < request.num_prompt_tokens + request.sampling.min_tokens:
            return False, None
        token_id = int(np.frombuffer(request.token_ids, "<i4")[position])
        is_eos = bool(self._is_eos[token_id]) and not request.sampling.ignore_eos
        if not is_eos and token_id not in request.sampling.stop_token_ids:
            return False, None
        return True, self.stop_token_id(request, token_id)

    def _count(self, request: Request, change: int) -> None:
        if request.sampling.stop_token_ids:
            token_ids = list(set(request.sampling.stop_token_ids))
            self._num_watching[token_ids] += change
            self._may_stop[token_ids] = self._is_eos[token_ids] | (self._num_watching[token_ids] > 0)
