"""What each frontend has to hear: tokens in columns, everything rare in lists, one message each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine_core.ipc.codec import pack_int32, pack_int64
from engine_core.ipc.messages import Finished, Started, StepOutputs
from engine_core.ipc.wire import TokenLogprobs
from engine_core.request import FrontendId
from engine_core.scheduler.running import IntColumn, RunningRows


class TokenColumns(NamedTuple):
    """Tokens one step emitted for one frontend; packed columns of the same length, as they go on the wire.

    Attributes:
        frontend_idx: which frontend.
        num_tokens: entries of each column.
        handles: int64 column.
        token_ids: int32 column.
        token_indices: int32 column; index of each token within its request's output.
    """

    frontend_idx: int
    num_tokens: int
    handles: bytes
    token_ids: bytes
    token_indices: bytes


class Recipients:
    """Which of a set of rows each frontend hears of; serves every step until a row comes or goes."""

    def __init__(self, running: RunningRows, rows: IntColumn) -> None:
        """Args: rows [n], occupied; the array is kept, and names this object."""
        self.rows = rows
        self._num_prompt_tokens = running.num_prompt_tokens[rows]
        handles = running.handles[rows]
        self._parts = [
            (idx, which, pack_int64(handles[which]))
            for idx, which in split_by_value(running.frontend_idx[rows])
        ]

    def split(self, positions: IntColumn, token_ids: npt.NDArray[np.int32]) -> list[TokenColumns]:
        """Return one TokenColumns per frontend, each in the order of the rows.

        Args:
            positions: [n], of the tokens in their sequences.
            token_ids: [n].
        """
        indices = (positions - self._num_prompt_tokens).astype(np.int32)
        return [
            TokenColumns(
                idx,
                len(handles) // 8,
                handles,
                pack_int32(token_ids[which]),
                pack_int32(indices[which]),
            )
            for idx, which, handles in self._parts
        ]


def split_by_value(values: IntColumn) -> list[tuple[int, npt.NDArray[np.intp] | slice]]:
    """Return each distinct value of a column [n] and where it stands, ascending in both."""
    if len(values) == 0:
        return []
    if np.count_nonzero(values == values[0]) == len(values):
        return [(int(values[0]), slice(None))]
    order = np.argsort(values, kind="stable")
    borders = np.flatnonzero(np.diff(values[order])) + 1
    return [(int(values[where[0]]), where) for where in np.split(order, borders)]


@dataclass(slots=True)
class _Pending:
    tokens: list[TokenColumns] = field(default_factory=list)
    started: list[Started] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)


class OutputCollector:
    """Collects outputs until the loop takes them, after every step, which bounds what piles up."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._pending: dict[FrontendId, _Pending] = {}

    def add_tokens(self, frontend: FrontendId, tokens: TokenColumns) -> None:
        """Add the tokens one step emitted for one frontend."""
        self._of(frontend).tokens.append(tokens)

    def add_started(self, frontend: FrontendId, started: Started) -> None:
        """Add a request that left the queue for the first time."""
        self._of(frontend).started.append(started)

    def add_finished(self, frontend: FrontendId, finished: Finished) -> None:
        """Add the end of a request."""
        self._of(frontend).finished.append(finished)

    def add_logprobs(self, frontend: FrontendId, logprobs: TokenLogprobs) -> None:
        """Add the logprobs of an emitted token."""
        self._of(frontend).logprobs.append(logprobs)

    def add_prompt_logprobs(self, frontend: FrontendId, logprobs: TokenLogprobs) -> None:
        """Add the logprobs of a prompt token."""
        self._of(frontend).prompt_logprobs.append(logprobs)

    def drop(self, frontend: FrontendId) -> None:
        """Forget what was meant for a frontend that is gone."""
        self._pending.pop(frontend, None)

    def take(self) -> dict[FrontendId, StepOutputs]:
        """Return one message per frontend that has something to hear, and start afresh."""
        if not self._pending:
            return {}
        pending, self._pending = self._pending, {}
        return {frontend: self._message(of) for frontend, of in pending.items()}

    def _of(self, frontend: FrontendId) -> _Pending:
        pending = self._pending.get(frontend)
        if pending is None:
            pending = self._pending[frontend] = _Pending()
        return pending

    def _message(self, of: _Pending) -> StepOutputs:
        # Joining bytes keeps the order of steps, so a request's tokens stay in order.
        return StepOutputs(
            epoch=self._epoch,
            handles=b"".join([tokens.handles for tokens in of.tokens]),
            token_ids=b"".join([tokens.token_ids for tokens in of.tokens]),
            token_indices=b"".join([tokens.token_indices for tokens in of.tokens]),
            started=of.started,
            finished=of.finished,
            logprobs=of.logprobs,
            prompt_logprobs=of.prompt_logprobs,
        )
