"""Streams of plain text that native code serves from the engine's message to the client's socket.

What Python does for a token of such a stream in three layers (frontend.engines.stream.sequence_stream, the
chunk writers of frontend.openai.answers, frontend.http.connection.body_writer) is done for all rows of a
message in two calls, with the same bytes. A stream is handed over after its first event and taken back for
everything that is not the next token: its end, an error, a client that does not read, a comment in between.
While it is handed over, nobody else writes to its connection.

    handed over (attach) --add, flush: tokens--> handed over
    handed over --recall--> Python's again, with what is not written yet --attach--> handed over ...

Copies of the layouts are in frontend._native; the other half is csrc/frontend/relay.h.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from splitserve.frontend._native import HeldBytes, StreamSpec, load_library
from splitserve.frontend.text.detokenizer import TextState

# A write to a socket takes 5 to 7 us, so this is 4 ms; then the event loop gets its turn.
MAX_FLUSHED_PER_TURN = 512


class Frame(NamedTuple):
    """What stands before and behind the text, as a JSON string, in every event of a stream."""

    prefix: bytes
    suffix: bytes


class LatencyBuckets(NamedTuple):
    """Arrays of a histogram of seconds, which stay in place while native code adds to them.

    Attributes:
        bounds: float64, [B]; upper bounds, ascending.
        counts: int64, [B + 1].
        total: float64, [1]; the sum of all values.
    """

    bounds: array[float]
    counts: array[int]
    total: array[float]


class Route(NamedTuple):
    """Where the events of one completion go, and what its tokens are timed by.

    Attributes:
        fd: a connected stream socket that does not block; nothing waits to be written to it.
        frame: of its events.
        latency: gets the time between two tokens, in seconds.
        last_token_s: monotonic time of the last token before the hand-over.
    """

    fd: int
    frame: Frame
    latency: LatencyBuckets
    last_token_s: float


class Relayed(NamedTuple):
    """What native code did for a stream until it was taken back.

    Attributes:
        token_ids: that it had, with those of the hand-over.
        num_taken: how many of them are written or held; the others are Python's to take.
        held: of an unfinished character.
        unsent: bytes that the socket did not take; they go to the connection before anything else.
        last_token_s: monotonic time of the last token taken.
        last_write_s: monotonic time of the last event, 0 for none.
        num_body_bytes: of the response's body, `unsent` included.
    """

    token_ids: array[int]
    num_taken: int
    held: bytes
    unsent: bytes
    last_token_s: float
    last_write_s: float
    num_body_bytes: int


class RelayedStream:
    """One stream that is handed over."""

    __slots__ = ("_handle", "_kept", "_relay")

    def __init__(self, relay: TokenRelay, handle: int, *kept: object) -> None:
        """Name it.

        Args:
            relay: that has it.
            handle: of its sequence.
            kept: what native code reads meanwhile.
        """
        self._relay = relay
        self._handle = handle
        self._kept = kept

    def last_write_s(self) -> float:
        """Monotonic time of its last event, 0 for none."""
        return self._relay.last_write_s(self._handle)

    def recall(self) -> Relayed:
        """Take it back, once; native code knows nothing of it afterwards."""
        return self._relay.detach(self._handle)


class TokenRelay:
    """The handed-over streams of one engine, open sequences all; belongs to the event loop.

    Attributes:
        num_streams: how many there are.
    """

    def __init__(self) -> None:
        library = load_library()
        self._relay: int = library.relay_new()
        self._delete = library.relay_delete
        self._report = library.relay_report(self._relay).contents
        self._attach, self._detach = library.relay_attach, library.relay_detach
        self._add, self._flush = library.relay_add, library.relay_flush
        self._last_write_s = library.relay_last_write_s
        self.num_streams = 0

    def __del__(self) -> None:
        if hasattr(self, "_delete"):
            self._delete(self._relay)

    def attach(
        self, handle: int, route: Route, text: TextState, token_ids: array[int], num_taken: int
    ) -> RelayedStream:
        """Take a stream over; its tokens are written by the next flush().

        Args:
            handle: of its sequence; not handed over now.
            route: where to.
            text: what is decoded so far.
            token_ids: int32, that have come but are not taken.
            num_taken: tokens of the sequence before these.
        """
        bounds, counts, total = route.latency
        address, num_token_ids = token_ids.buffer_info()
        spec = StreamSpec(
            handle=handle,
            bounds=bounds.buffer_info()[0],
            num_bounds=len(bounds),
            counts=counts.buffer_info()[0],
            sum=total.buffer_info()[0],
            pieces=text.pieces.address,
            frame=route.frame.prefix + route.frame.suffix,
            token_ids=address,
            last_token_s=route.last_token_s,
            prefix_size=len(route.frame.prefix),
            suffix_size=len(route.frame.suffix),
            num_token_ids=num_token_ids,
            num_taken=num_taken,
            fd=route.fd,
            replace_each_byte=text.replace_each_byte,
            held=HeldBytes((ctypes.c_ubyte * 3)(*text.held), len(text.held)),
        )
        self._attach(self._relay, spec)
        self.num_streams += 1
        return RelayedStream(self, handle, text.pieces, route.latency)

    def add(self, handles: bytes, token_ids: bytes, indices: bytes, num_rows: int) -> Sequence[int]:
        """Take the rows of a message; returns those that are of no stream here or not its next token.

        Args:
            handles: num_rows little-endian int64.
            token_ids: num_rows little-endian int32.
            indices: the same; place of each token in its sequence.
            num_rows: length of the columns.
        """
        if not self.num_streams:
            return range(num_rows)
        num_left = self._add(self._relay, handles, token_ids, indices, num_rows)
        left: list[int] = self._report.left_rows[:num_left] if num_left else []
        return left

    def flush(self, now_s: float) -> tuple[int, list[int]]:
        """Write what is new, one event per stream, for at most 512 streams.

        Args:
            now_s: monotonic time.

        Returns:
            How many streams still wait, and the handles of those whose socket did not take all: they are
            taken back before anything else is done.
        """
        if not self.num_streams:
            return 0, []
        num_waiting: int = self._flush(self._relay, now_s, MAX_FLUSHED_PER_TURN)
        report = self._report
        return num_waiting, report.blocked[: report.num_blocked] if report.num_blocked else []

    def detach(self, handle: int) -> Relayed:
        """Give a stream back."""
        found = self._detach(self._relay, handle)
        assert found, "taken back twice"
        self.num_streams -= 1
        outcome = found.contents
        token_ids = array("i", ctypes.string_at(outcome.token_ids, 4 * outcome.num_token_ids))
        return Relayed(
            token_ids,
            outcome.num_taken,
            bytes(outcome.held.data[: outcome.held.size]),
            ctypes.string_at(outcome.unsent, outcome.num_unsent),
            outcome.last_token_s,
            outcome.last_write_s,
            outcome.num_body_bytes,
        )

    def last_write_s(self, handle: int) -> float:
        """Monotonic time of a stream's last event, 0 for none."""
        written_s: float = self._last_write_s(self._relay, handle)
        return written_s
