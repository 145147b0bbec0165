"""The events of a streamed run, made slice by slice as its deltas come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from splitserve.frontend.engines.connection.token_relay import Frame
from splitserve.frontend.engines.generation import OutputDelta
from splitserve.frontend.openai.fast_path import TextFastPath
from splitserve.frontend.openai.generation_run import GenerationRun

# One event of a stream, or the pieces of one that is more than a slice.
Event = bytes | Iterator[bytes]


class ChunkWriter(Protocol):
    """Turns the deltas of one request into the bytes of its stream."""

    def first_events(self) -> bytes:
        """Return the events before the first delta's."""

    def chunk(self, prompt_idx: int, delta: OutputDelta) -> Event:
        """Return the event of one delta; b"" if it shows nothing. It is sent before the next is asked for."""

    def frame(self) -> Frame | None:
        """Return what chunk() puts around the text of the first choice; None if it adds more than that."""

    def last_events(self) -> bytes:
        """Return the events after the last delta's, before [DONE]."""


class RunEvents:
    """The events of a run as a stream wants them: those that are ready together, slice by slice.

    Attributes:
        finished: whether take() has returned the last event.
        behind: whether take() would return more now.
        in_event: whether the last take() ended within an event.
    """

    __slots__ = ("_chunk", "_first_events", "_large", "_left", "_run", "_writer", "finished")

    def __init__(self, run: GenerationRun, writer: ChunkWriter) -> None:
        """Join a run that is not open yet and the writer of its chunks."""
        self._run = run
        self._writer = writer
        self._chunk = writer.chunk
        self._first_events = b""
        # The event that is being sent, and deltas of the same take() of the run behind it.
        self._left: Sequence[tuple[int, OutputDelta]] = ()
        self._large: Iterator[bytes] | None = None
        self.finished = False

    @property
    def behind(self) -> bool:
        """Whether take() would return more now."""
        return self.in_event or bool(self._left) or self._run.behind

    @property
    def in_event(self) -> bool:
        """Whether the last take() ended within an event."""
        return self._large is not None

    async def open(self, on_ready: Callable[[], None]) -> None:
        """Open the run."""
        self._first_events = self._writer.first_events()
        await self._run.open(on_ready)

    def take(self) -> bytes:
        """Return the events of what is new, or the next piece of a large one, b"" for none."""
        if self._large is not None:
            piece = next(self._large, None)
            if piece is not None:
                return piece
            self._large = None
        events = self._next_events(self._left or self._run.take())
        if self._run.finished and not self.finished and not self._left and self._large is None:
            self.finished = True
            events.append(self._writer.last_events())
        return b"".join(events)

    def _next_events(self, batch: Sequence[tuple[int, OutputDelta]]) -> list[bytes]:
        events = []
        if batch and self._first_events:
            events.append(self._first_events)
            self._first_events = b""
        self._left = ()
        for i, (prompt_idx, delta) in enumerate(batch, start=1):
            event = self._chunk(prompt_idx, delta)
            if not isinstance(event, bytes):
                self._large, self._left = event, batch[i:]
                break
            events.append(event)
        return events

    def fast_path(self) -> TextFastPath | None:
        """Return the fast path of an open run, if its events are the plain text of one completion."""
        frame = self._writer.frame()
        return None if frame is None else self._run.fast_path(frame)

    def close(self) -> None:
        """Close the run, and drop what is not rendered."""
        self._left, self._large = (), None
        self._run.close()
