"""The frontend's record of one sequence on an engine: the request and all its output."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from splitserve.engine_core.errors import ProtocolError, SplitServeError
from splitserve.engine_core.ipc.messages import AddRequest, Drafted, Finished
from splitserve.engine_core.ipc.wire import TokenLogprobs
from splitserve.frontend.engines.connection.token_relay import Relayed, RelayedStream, Route, TokenRelay
from splitserve.frontend.text.detokenizer import TextState


def _empty() -> array[int]:
    return array("i")


@dataclass(slots=True)
class OpenSequence:
    """One sequence on an engine: the request, and every token received so far.

    Holds what is needed to continue it elsewhere: prompt and parameters in `request`, output in `token_ids`.
    While it is displaced, that is, between two engines, it is in no table, and has no relay.

    Attributes:
        request: as it was first sent.
        wake: called when there is something new to take; each callable once per SequenceTable.wake_up().
        relay: the engine's relay, native code that can write the stream; None while it is displaced.
        handle: on the engine that runs it, or ran it last.
        deadline_s: monotonic time at which it times out.
        queue_deadline_s: the same while no engine has taken it; inf once one has.
        token_ids: the output so far, four bytes per token.
        host: that opened it, and is its owner while it is displaced.
        place: the engine that runs it; None while it is displaced, and once it was aborted.
        was_displaced: whether an engine that had taken it was lost, or gave it back.
        watched: whether each token has to be seen here as it comes, so that native code must not take it.
        has_started: whether an engine has begun to run it.
        is_running: whether the engine that has it, or had it last, has begun to.
        relayed: set while native code writes the stream; its new tokens are kept there, not in token_ids.
        returned: what native code did, once the stream is taken back; read by the one that handed it over.
        num_taken: how many of token_ids the stream has taken.
        logprobs: logprobs of the tokens not yet taken.
        prompt_logprobs: empty, or one per prompt token; None for those that have not arrived.
        pooled: the prompt's vector, a float32 column; empty until it has arrived.
        drafted: of each step that drafted for it the index of its first token, drafts, and how many counted.
        num_cached_tokens: prompt tokens found in the prefix cache of the first engine.
        queue_time_s: how long it waited on that engine before it first ran.
        finished: set when the engine has finished it.
        error: set if it failed instead.
    """

    request: AddRequest
    wake: Callable[[], None]
    relay: TokenRelay | None = None
    handle: int = 0
    deadline_s: float = math.inf
    queue_deadline_s: float = math.inf
    token_ids: array[int] = field(default_factory=_empty)
    num_taken: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    pooled: bytes = b""
    drafted: array[int] = field(default_factory=_empty)
    num_cached_tokens: int = 0
    queue_time_s: float = 0.0
    host: SequenceHost | None = None
    place: Place | None = None
    was_displaced: bool = False
    watched: bool = False
    has_started: bool = False
    is_running: bool = False
    finished: Finished | None = None
    error: SplitServeError | None = None
    relayed: RelayedStream | None = None
    returned: Relayed | None = None

    def add_prompt_logprobs(self, entry: TokenLogprobs) -> None:
        """Keep the logprobs of one prompt token.

        Raises:
            ProtocolError: it is malformed, or belongs to no prompt token.
        """
        num_prompt_tokens = len(self.request.prompt_token_ids) // 4
        if not 0 <= entry.token_index < num_prompt_tokens:
            raise ProtocolError(f"logprobs of prompt token {entry.token_index} of {num_prompt_tokens}")
        check_columns(entry)
        if not self.prompt_logprobs:
            self.prompt_logprobs = [None] * num_prompt_tokens
        self.prompt_logprobs[entry.token_index] = entry

    def add_drafted(self, step: Drafted) -> None:
        """Keep what came of a step's drafts."""
        self.drafted.extend((step.token_index, step.num_drafts, step.num_counted))

    def num_drafted(self, num_tokens: int) -> tuple[int, int]:
        """Return how many tokens were drafted, and how many of them are among the first num_tokens."""
        firsts, drafts, counted = self.drafted[::3], self.drafted[1::3], self.drafted[2::3]
        runs = zip(firsts, counted, strict=True)
        return sum(drafts), sum(max(0, min(count, num_tokens - first)) for first, count in runs)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self.finished is not None or self.error is not None

    def fail(self, error: SplitServeError) -> None:
        """End with an error and notify the stream at once."""
        self.recall()
        self.error = error
        self.wake()

    def hand_over(self, route: Route, text: TextState) -> None:
        """Let native code write all tokens not yet taken, until recall(); only while it is in a table.

        Args:
            route: where to write them.
            text: the detokenizer's state.
        """
        assert self.relay is not None, "it is displaced"
        new = self.token_ids[self.num_taken :]
        del self.token_ids[self.num_taken :]
        self.relayed = self.relay.attach(self.handle, route, text, new, self.num_taken)

    def recall(self) -> None:
        """Take the stream back from native code if it is there; Python writes the rest."""
        if self.relayed is None:
            return
        self.returned, self.relayed = self.relayed.recall(), None
        self.token_ids += self.returned.token_ids
        self.num_taken += self.returned.num_taken


class Place(Protocol):
    """Where sequences run; compared by identity."""

    def abort(self, sequences: Iterable[OpenSequence]) -> None:
        """Abort those of the sequences that are still open."""


class SequenceHost(Protocol):
    """Opens and aborts sequences: all that a stream or a beam search needs of the engines.

    It is the owner of a client's request (frontend.engines.failover), which outlives the engine that runs it.
    """

    def open(self, requests: Sequence[AddRequest], wake: Callable[[], None]) -> list[OpenSequence]:
        """Open the sequences of one client's request, all of them or none.

        Args:
            requests: one per sequence; the host sets their handle and `more`.
            wake: called by the event loop when something has arrived for any of them.

        Raises:
            EngineUnavailableError, OverloadedError: none was opened.
        """

    def abort(self, sequences: Iterable[OpenSequence]) -> None:
        """Abort those of the sequences that are still open, without calling their `wake`."""


def check_columns(entry: TokenLogprobs, asked_ids: bytes = b"") -> None:
    """Check the size of the columns an engine sent; they are decoded only when they are shown.

    Args:
        entry: logprobs of one token.
        asked_ids: column of the token ids that the request named, beside the top alternatives.

    Raises:
        ProtocolError: the columns do not match each other or the request.
    """
    size = len(entry.token_ids)
    too_short = size < 4 + len(asked_ids) or not entry.token_ids.endswith(asked_ids)
    if too_short or size % 4 or size != len(entry.logprobs):
        raise ProtocolError(f"logprobs of {size} bytes of token ids and {len(entry.logprobs)} of values")
