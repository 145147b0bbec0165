"""What a client process is to ask, and what it has seen: the two files between it and the benchmark."""

from __future__ import annotations

import enum

import msgspec
import numpy as np
import numpy.typing as npt

FloatColumn = npt.NDArray[np.float64]
IntColumn = npt.NDArray[np.int32]


class Reader(enum.IntEnum):
    """How a client reads its stream.

    EAGER: at once. SLOW: a byte per second into a small buffer. GONE: its kernel drops whatever comes, unread
    and unacknowledged, as if the machine had lost its power (half-open).
    """

    EAGER = 0
    SLOW = 1
    GONE = 2


class End(enum.IntEnum):
    """How a stream was when the client looked last.

    OPEN: nothing was wrong so far. WHOLE: it ended in order. HUNG_UP: by the client, as planned. REFUSED: a
    status other than 200. FAILED: an event told of an error. BROKEN: the connection ended without an end.
    """

    OPEN = 0
    WHOLE = 1
    HUNG_UP = 2
    REFUSED = 3
    FAILED = 4
    BROKEN = 5


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """One request.

    Attributes:
        at_s: when it is sent, seconds after Plan.start_s.
        port: of a frontend on loopback.
        body: index into Plan.bodies.
        hang_up_s: when the client hangs up, seconds after it was sent; 0 for never.
    """

    at_s: float
    port: int
    body: int
    reader: Reader = Reader.EAGER
    hang_up_s: float = 0.0


class Plan(msgspec.Struct, frozen=True):
    """What one client process asks.

    Attributes:
        name: begins the ids of its requests, which go on with a number.
        start_s: on time.time().
        bodies: fields of completion requests.
        texts: the whole text that is right for each body; "" where it is not known yet.
        asks: in order of at_s.
        again_s: a stream that has ended is followed by one with the next body until so many seconds after
            start_s; 0 for never.
    """

    name: str
    start_s: float
    bodies: list[dict[str, object]]
    texts: list[str]
    asks: list[Ask]
    again_s: float = 0.0


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """One stream as its client saw it; times on time.time(), taken by the kernel as bytes arrived.

    Attributes:
        request_id: as it was sent with the request.
        status: of HTTP; 0 without an answer.
        error: code of the error that ended or refused it.
        sent_s: when the request went out, on a connection that was there.
        ended_s: when its last bytes came; if they are no end, when the client saw the connection end, hung up
            or stopped looking.
        is_right: what came of its text is the right text, or the start of it.
        text: all of it, if the plan does not know it.
        event_times, num_chars: of each event with text: float64 column, and int32 column of the characters up
            to and with it.
    """

    request_id: str
    body: int
    port: int
    reader: Reader
    end: End
    status: int
    error: str
    sent_s: float
    ended_s: float
    is_right: bool
    text: str
    event_times: bytes
    num_chars: bytes

    @property
    def times_s(self) -> FloatColumn:
        """When each event with text came."""
        return np.frombuffer(self.event_times, np.float64)

    @property
    def chars(self) -> IntColumn:
        """Characters up to and with each event."""
        return np.frombuffer(self.num_chars, np.int32)


class Report(msgspec.Struct, frozen=True):
    """All that a client process saw, and its own CPU seconds."""

    seen: list[Seen]
    cpu_s: float
