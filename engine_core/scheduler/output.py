"""What is each frontend told, and when? One message each: tokens in columns, everything rare in lists.

A message is sent as soon as it holds anything that somebody waits for: a token of a streaming request, a
request's start or first token, an end, or logprobs, which are large. Other tokens are batched for GATHER_S,
since each message costs the engine and the frontend tens of microseconds; a response that does not stream
loses nothing by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.ipc.codec import pack_int32, pack_int64
from splitserve.engine_core.ipc.messages import Drafted, Finished, Started, StepOutputs
from splitserve.engine_core.ipc.wire import Pooled, TokenLogprobs
from splitserve.engine_core.request import FrontendId
from splitserve.engine_core.scheduler.running import IntColumn, RunningRows

# Too short for a person or a timeout to notice, but long compared to a step.
GATHER_S = 0.05
NEVER = float("inf")


class TokenColumns(NamedTuple):
    """Tokens one step emitted for one frontend; packed columns of equal length, as sent on the wire.

    Attributes:
        frontend_idx: which frontend.
        num_tokens: entries of each column.
        handles: int64 column.
        token_ids: int32 column.
        token_indices: int32 column; index of each token within its request's output.
        urgent: whether somebody waits for one of them.
    """

    frontend_idx: int
    num_tokens: int
    handles: bytes
    token_ids: bytes
    token_indices: bytes
    urgent: bool = True


class Recipients:
    """Which rows of a set belong to which frontend; reused for every step until a row comes or goes."""

    def __init__(self, running: RunningRows, rows: IntColumn) -> None:
        """Args: rows [n], occupied; the array is kept, and names this object."""
        self.rows = rows
        self._num_prompt_tokens = running.num_prompt_tokens[rows]
        handles, streams = running.handles[rows], running.streams[rows]
        self._parts = [
            (idx, which, pack_int64(handles[which]), bool(streams[which].any()))
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
                streams or not indices[which].all(),
            )
            for idx, which, handles, streams in self._parts
        ]


def split_by_value(values: IntColumn) -> list[tuple[int, npt.NDArray[np.intp] | slice]]:
    """Return each distinct value of a column [n] and its indices, both ascending."""
    if len(values) == 0:
        return []
    if np.count_nonzero(values == values[0]) == len(values):
        return [(int(values[0]), slice(None))]
    order = np.argsort(values, kind="stable")
    borders = np.flatnonzero(np.diff(values[order])) + 1
    return [(int(values[where[0]]), where) for where in np.split(order, borders)]


@dataclass(slots=True)
class _Pending:
    urgent: bool = False
    due_s: float = NEVER
    tokens: list[TokenColumns] = field(default_factory=list)
    started: list[Started] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    pooled: list[Pooled] = field(default_factory=list)
    drafted: list[Drafted] = field(default_factory=list)


class OutputCollector:
    """Collects outputs until the loop takes them after every step: at most GATHER_S worth piles up."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._pending: dict[FrontendId, _Pending] = {}

    @property
    def due_s(self) -> float:
        """When the next message of batched tokens is due, as of the last take(); inf for none."""
        return min([pending.due_s for pending in self._pending.values()], default=NEVER)

    def add_tokens(self, frontend: FrontendId, tokens: TokenColumns) -> None:
        """Add the tokens one step emitted for one frontend."""
        pending = self._of(frontend)
        pending.tokens.append(tokens)
        pending.urgent |= tokens.urgent

    def add_started(self, frontend: FrontendId, started: Started) -> None:
        """Add a request that left the queue for the first time."""
        self._urgent(frontend).started.append(started)

    def add_finished(self, frontend: FrontendId, finished: Finished) -> None:
        """Add the end of a request."""
        self._urgent(frontend).finished.append(finished)

    def add_logprobs(self, frontend: FrontendId, logprobs: TokenLogprobs) -> None:
        """Add the logprobs of an emitted token."""
        self._urgent(frontend).logprobs.append(logprobs)

    def add_prompt_logprobs(self, frontend: FrontendId, logprobs: TokenLogprobs) -> None:
        """Add the logprobs of a prompt token."""
        self._urgent(frontend).prompt_logprobs.append(logprobs)

    def add_pooled(self, frontend: FrontendId, pooled: Pooled) -> None:
        """Add the vector of a prompt."""
        self._urgent(frontend).pooled.append(pooled)

    def add_drafted(self, step: Iterable[tuple[FrontendId, Drafted]]) -> None:
        """Add what came of a step's drafts; nobody waits for that before a request's end."""
        for frontend, drafted in step:
            self._of(frontend).drafted.append(drafted)

    def drop(self, frontend: FrontendId) -> None:
        """Drop the pending output of a frontend that is gone."""
        self._pending.pop(frontend, None)

    def take(self, now_s: float) -> dict[FrontendId, StepOutputs]:
        """Return one message per frontend whose output is due, and start afresh for these.

        Args:
            now_s: the time; inf for everything.
        """
        ready = [frontend for frontend, pending in self._pending.items() if _is_ready(pending, now_s)]
        return {frontend: self._message(self._pending.pop(frontend)) for frontend in ready}

    def _of(self, frontend: FrontendId) -> _Pending:
        pending = self._pending.get(frontend)
        if pending is None:
            pending = self._pending[frontend] = _Pending()
        return pending

    def _urgent(self, frontend: FrontendId) -> _Pending:
        pending = self._of(frontend)
        pending.urgent = True
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
            pooled=of.pooled,
            drafted=of.drafted,
        )


def _is_ready(pending: _Pending, now_s: float) -> bool:
    """Whether a message is sent now; for tokens that can wait, the first call sets the time they are due."""
    if pending.due_s == NEVER:
        pending.due_s = now_s + GATHER_S
    return pending.urgent or now_s >= pending.due_s
