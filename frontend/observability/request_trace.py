"""What happens to one request that is traced: the times and figures of which spans are made at its end.

Requests that are not traced have none of this, and tokens cost nothing either way: all of it is known from
what is measured for the metrics.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from starlette.requests import Request

STATE = "trace"
# Spans of a request: three for each of so many sequences.
MAX_SEQUENCES = 16

AttributeValue = str | bool | int | float | Sequence[str]


class SequenceTrace(NamedTuple):
    """One sequence; times are seconds of the monotonic clock.

    Attributes:
        arrived_s: when it was sent to the engine.
        queue_time_s: how long it waited there before it first ran, by the engine's clock.
        first_token_s, last_token_s: when they arrived; meaningless without tokens.
        num_tokens: how many have arrived.
        finish_reason: "" if it has not ended.
        num_preemptions: how often it was preempted; None if that is not known.
    """

    arrived_s: float
    queue_time_s: float
    first_token_s: float
    last_token_s: float
    num_tokens: int
    finish_reason: str
    num_preemptions: int | None


@dataclass(slots=True)
class GenerationTrace:
    """The part of a request that concerns the model.

    Attributes:
        operation: of the GenAI semantic conventions.
        model: as the client named it.
        attributes: of the conventions, and others.
        sequences: at most MAX_SEQUENCES.
    """

    operation: str
    model: str
    attributes: dict[str, AttributeValue]
    sequences: list[SequenceTrace]


@dataclass(slots=True, eq=False)
class RequestTrace:
    """A traced request; belongs to the event loop.

    Attributes:
        trace_id: for the log, 32 hexadecimal digits.
        began_s: monotonic time of its headers.
        began_ns: the same as Unix time, in nanoseconds.
        tokenized_s: when its prompts began to be encoded and when they were, template included; None if they
            were not.
        generation: once the model has worked for it.
        error: code of the error that ended it, "" for none.
    """

    trace_id: str
    began_s: float = field(default_factory=time.monotonic)
    began_ns: int = field(default_factory=time.time_ns)
    tokenized_s: tuple[float, float] | None = None
    generation: GenerationTrace | None = None
    error: str = ""

    def unix_ns(self, monotonic_s: float) -> int:
        """Return a monotonic time as Unix time, in nanoseconds."""
        return self.began_ns + round((monotonic_s - self.began_s) * 1e9)


def trace_of(request: Request) -> RequestTrace | None:
    """Return the trace of a request, None if it is not traced."""
    found: RequestTrace | None = request.scope["state"].get(STATE)
    return found


def note_error(request: Request, code: str) -> None:
    """Note why a request ends, if it is traced."""
    trace = trace_of(request)
    if trace is not None:
        trace.error = code


@contextlib.contextmanager
def tokenizing(request: Request) -> Iterator[None]:
    """Note how long the prompts of a request take to be encoded, if it is traced."""
    trace = trace_of(request)
    if trace is None:
        yield
        return
    began_s = time.monotonic()
    try:
        yield
    finally:
        trace.tokenized_s = (began_s, time.monotonic())
