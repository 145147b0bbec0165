"""What the clients see: when each request started, got its tokens and ended."""

from __future__ import annotations

import numpy as np

from benchmarks.simulation.distribution import WeightedValues
from benchmarks.simulation.settings import Goals
from benchmarks.simulation.trace import FloatColumn, IntColumn
from splitserve.engine_core.ipc.codec import unpack_int32, unpack_int64
from splitserve.engine_core.ipc.messages import FinishReason, StepOutputs

OPEN, COMPLETE, REJECTED, FAILED = range(4)


class Measurements:
    """Columns over all requests, filled from the engine's messages; times are simulated seconds.

    Attributes:
        sent_s, started_s, first_token_s, last_token_s, ended_s: float64, NaN until it happens.
        num_tokens: int64, output tokens received.
        num_late: int64, tokens that came more than the ITL goal after the one before.
        num_cached: int64, prompt tokens found in the prefix cache at the first admission.
        num_preemptions: int64.
        outcome: int8, OPEN, COMPLETE, REJECTED (429 or 400 on arrival) or FAILED (timed out).
        gaps: time between the tokens of a request, over all tokens but first ones.
    """

    def __init__(self, num_requests: int, goals: Goals) -> None:
        def times() -> FloatColumn:
            return np.full(num_requests, np.nan)

        def counts() -> IntColumn:
            return np.zeros(num_requests, np.int64)

        self._itl_goal_s = goals.itl_ms / 1000
        self.sent_s, self.started_s, self.first_token_s = times(), times(), times()
        self.last_token_s, self.ended_s = times(), times()
        self.num_tokens, self.num_late = counts(), counts()
        self.num_cached, self.num_preemptions = counts(), counts()
        self.outcome = np.zeros(num_requests, np.int8)
        self.gaps = WeightedValues()

    def sent(self, request: int, now_s: float) -> None:
        """Note that a request was sent."""
        assert np.isnan(self.sent_s[request]), "a request is sent once"
        self.sent_s[request] = now_s

    def rejected(self, request: int, now_s: float) -> None:
        """Note that the engine did not take a request."""
        self._end(request, REJECTED, now_s)

    def hear(self, outputs: StepOutputs, now_s: float) -> IntColumn:
        """Take one message in; returns the requests that got a token, [n]."""
        for started in outputs.started:
            self.started_s[started.handle] = now_s
            self.num_cached[started.handle] = started.num_cached_tokens
        requests = unpack_int64(outputs.handles)
        if len(requests):
            self._hear_tokens(requests, unpack_int32(outputs.token_indices), now_s)
        for finished in outputs.finished:
            is_complete = finished.reason in (FinishReason.STOP, FinishReason.LENGTH)
            self._end(finished.handle, COMPLETE if is_complete else FAILED, now_s)
            self.num_preemptions[finished.handle] = finished.num_preemptions
        return requests

    def _hear_tokens(self, requests: IntColumn, indices: np.ndarray, now_s: float) -> None:
        expected = self.num_tokens[requests]
        assert np.array_equal(indices, expected), "a token is missing or repeated"
        self.num_tokens[requests] = expected + 1
        is_first = expected == 0
        later = requests
        if is_first.any():
            self.first_token_s[requests[is_first]] = now_s
            later = requests[~is_first]
        gaps = now_s - self.last_token_s[later]
        self.gaps.add(gaps)
        self.num_late[later] += gaps > self._itl_goal_s
        self.last_token_s[requests] = now_s

    def _end(self, request: int, outcome: int, now_s: float) -> None:
        assert self.outcome[request] == OPEN, "a request ends once"
        self.outcome[request] = outcome
        self.ended_s[request] = now_s
