"""Streams of plain text that native code writes, from the engine's message straight to the client's socket.

What Python does for a token of such a stream in three layers (frontend.engines.stream.sequence_stream, the
chunk writers of frontend.openai.answers, frontend.http.connection.body_writer) is done here for all rows of a
message in two calls, and gives the same bytes. A stream is handed over after its first event and taken back
for anything that is not the next token: its end, an error, a client that does not read, a comment in between.
While it is handed over, nobody else writes to its connection.

    handed over (attach) --add, flush: tokens--> handed over
    handed over --recall--> back in Python, with what is not written yet --attach--> handed over ...

frontend._native repeats the struct layouts; the native half is csrc/frontend/relay.h.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from splitserve.frontend._native import HeldBytes, StreamSpec, load_library
from splitserve.frontend.text.detokenizer import TextState

# A write to a socket takes 5 to 7 us, so this is about 4 ms; then the event loop gets to run.
MAX_FLUSHED_PER_TURN = 512


class Frame(NamedTuple):
    """The bytes before and after the text, which is a JSON string, in every event of a stream."""

    prefix: bytes
    suffix: bytes


class LatencyBuckets(NamedTuple):
    """The arrays of a histogram of seconds; they must not move while native code adds to them.

    Attributes:
        bounds: float64, [B]; upper bounds, ascending.
        counts: int64, [B + 1].
        total: float64, [1]; the sum of all values, in seconds.
    """

    bounds: array[float]
    counts: array[int]
    total: array[float]


class Route(NamedTuple):
    """Where the events of one completion are written, and how its tokens are timed.

    Attributes:
        fd: a connected non-blocking stream socket with no buffered writes.
        frame: the frame of its events.
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
        token_ids: the token ids it received, including those of the hand-over.
        num_taken: how many of them are written or held; the others are left to Python.
        held: bytes of an unfinished character.
        unsent: bytes that the socket did not accept; they must be written before anything else.
        last_token_s: monotonic time of the last token taken.
        last_write_s: monotonic time of the last event, 0 for none.
        num_body_bytes: bytes of the response's body, `unsent` included.
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
        """Refer to a stream of the relay.

        Args:
            relay: the relay that serves it.
            handle: handle of its sequence.
            kept: objects that native code reads, kept alive meanwhile.
        """
        self._relay = relay
        self._handle = handle
        self._kept = kept

    def last_write_s(self) -> float:
        """Monotonic time of its last event, 0 for none."""
        return self._relay.last_write_s(self._handle)

    def recall(self) -> Relayed:
        """Take it back, once; native code forgets it."""
        return self._relay.detach(self._handle)


class TokenRelay:
    """The handed-over streams of one engine, all of open sequences; belongs to the event loop.

    Attributes:
        num_streams: how many are handed over.
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
            handle: handle of its sequence, which must not be handed over already.
            route: where to write it.
            text: the detokenizer's state.
            token_ids: int32; tokens that have arrived but are not taken.
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
        """Take the rows of a message; return those that belong to no stream here or are not its next token.

        Args:
            handles: num_rows little-endian int64.
            token_ids: num_rows little-endian int32.
            indices: num_rows little-endian int32; position of each token in its sequence.
            num_rows: length of the columns.
        """
        if not self.num_streams:
            return range(num_rows)
        num_left = self._add(self._relay, handles, token_ids, indices, num_rows)
        left: list[int] = self._report.left_rows[:num_left] if num_left else []
        return left

    def flush(self, now_s: float) -> tuple[int, list[int]]:
        """Write the new text, one event per stream, for at most 512 streams.

        Args:
            now_s: monotonic time.

        Returns:
            How many streams are still waiting, and the handles of those whose socket did not accept all: take
            these back before doing anything else.
        """
        if not self.num_streams:
            return 0, []
        num_waiting: int = self._flush(self._relay, now_s, MAX_FLUSHED_PER_TURN)
        report = self._report
        return num_waiting, report.blocked[: report.num_blocked] if report.num_blocked else []

    def detach(self, handle: int) -> Relayed:
        """Stop serving a stream and return what was done for it."""
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
