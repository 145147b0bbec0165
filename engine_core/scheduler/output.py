"""What each frontend has to hear: tokens in columns, everything rare in lists, one message each."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine_core.ipc.codec import pack_int32, pack_int64
from engine_core.ipc.messages import Finished, Started, StepOutputs, TokenLogprobs
from engine_core.request import FrontendId
from engine_core.scheduler.running import IntColumn


class TokenColumns(NamedTuple):
    """Tokens emitted by one step; all columns have the same length.

    Attributes:
        frontend_idx: int64; which frontend each token goes to.
        handles: int64.
        token_ids: int32.
        token_indices: int64; index of each token within its request's output.
    """

    frontend_idx: IntColumn
    handles: IntColumn
    token_ids: npt.NDArray[np.int32]
    token_indices: IntColumn

    def select(self, which: npt.NDArray) -> TokenColumns:
        """Return the entries named by an index array or a mask."""
        return TokenColumns(*(column[which] for column in self))

    def split(self) -> list[TokenColumns]:
        """Return one TokenColumns per frontend, each in the order of this one."""
        frontends = self.frontend_idx
        if len(frontends) == 0:
            return []
        if (frontends == frontends[0]).all():
            return [self]
        by_frontend = self.select(np.argsort(frontends, kind="stable"))
        borders = np.flatnonzero(np.diff(by_frontend.frontend_idx)) + 1
        edges = [0, *borders.tolist(), len(frontends)]
        return [by_frontend.select(np.arange(a, b)) for a, b in pairwise(edges)]


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
            handles=b"".join(pack_int64(tokens.handles) for tokens in of.tokens),
            token_ids=b"".join(pack_int32(tokens.token_ids) for tokens in of.tokens),
            token_indices=b"".join(pack_int32(tokens.token_indices) for tokens in of.tokens),
            started=of.started,
            finished=of.finished,
            logprobs=of.logprobs,
            prompt_logprobs=of.prompt_logprobs,
        )
