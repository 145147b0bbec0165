"""The events of a streamed response; see frontend.responses.schema.events for their order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import cast

import msgspec

from splitserve.frontend.engines.connection.token_relay import Frame
from splitserve.frontend.engines.generation import OutputDelta
from splitserve.frontend.http.dialect import ErrorDetail
from splitserve.frontend.http.response.json_pieces import JsonPieces
from splitserve.frontend.http.response.sse import named_event
from splitserve.frontend.openai.run_events import Event
from splitserve.frontend.responses.output import Begun, Ended, Grown, Item, Output, Step
from splitserve.frontend.responses.schema.events import (
    CallArgumentsDelta,
    CallArgumentsDone,
    ContentPartAdded,
    ContentPartDone,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    StreamEvent,
)
from splitserve.frontend.responses.schema.response import ResponseObject
from splitserve.frontend.responses.snapshot import Snapshot


class EventWriter:
    """Writes the events of one stream."""

    def __init__(self, snapshot: Snapshot, output: Output, *, with_end: bool = True) -> None:
        """Prepare.

        Args:
            snapshot: of the response.
            output: of its run.
            with_end: False if end() is called for the last event.
        """
        self._with_end = with_end
        self._snapshot = snapshot
        self._output = output
        self._numbers = count(2)
        self._started = False

    def first_events(self) -> bytes:
        """Return the events that tell of the response, numbers 0 and 1."""
        response = self._snapshot.begun()
        return named_event(ResponseCreated(sequence_number=0, response=response)) + named_event(
            ResponseInProgress(sequence_number=1, response=response)
        )

    def chunk(self, prompt_idx: int, delta: OutputDelta) -> Event:
        """Return the events of one delta, with the last one those of the end; b"" if it shows nothing."""
        self._started = True
        pieces = JsonPieces()
        events = [event for step in self._output.read(delta) for event in self._events(step, pieces)]
        if self._output.finish_reason is not None and self._with_end:
            events.append(self._end(self._snapshot.ended(pieces)))
        encoded = b"".join(map(named_event, events))
        return pieces.fill(encoded) if pieces.has_parts else encoded

    def frame(self) -> Frame | None:
        """Return None: every event has its own number."""
        return None

    def last_events(self) -> bytes:
        """Return nothing: the end comes with the last delta."""
        return b""

    def failure(self, detail: ErrorDetail) -> bytes:
        """Return the events that tell of an error, after whatever was sent."""
        first = b"" if self._started else self.first_events()
        failed = ResponseFailed(sequence_number=next(self._numbers), response=self._snapshot.failed(detail))
        return first + named_event(failed)

    def end(self, response: bytes) -> bytes:
        """Return the last event of a response that has ended, given as JSON."""
        return named_event(self._end(cast(ResponseObject, msgspec.Raw(response))))

    def _end(self, response: ResponseObject) -> StreamEvent:
        number = next(self._numbers)
        if self._snapshot.status == "failed":
            return ResponseFailed(sequence_number=number, response=response)
        if self._snapshot.status == "incomplete":
            return ResponseIncomplete(sequence_number=number, response=response)
        return ResponseCompleted(sequence_number=number, response=response)

    def _events(self, step: Step, pieces: JsonPieces) -> Iterator[StreamEvent]:
        match step:
            case Begun(item):
                yield from self._begun(item, pieces)
            case Grown(item, _):
                yield self._grown(step, pieces)
            case Ended(item):
                yield from self._ended(item, pieces)

    def _begun(self, item: Item, pieces: JsonPieces) -> Iterator[StreamEvent]:
        shown = self._snapshot.item(item, pieces, with_text=False)
        yield OutputItemAdded(sequence_number=next(self._numbers), output_index=item.index, item=shown)
        if item.kind != "function_call":
            yield ContentPartAdded(
                sequence_number=next(self._numbers),
                item_id=item.id,
                output_index=item.index,
                part=self._snapshot.part(item, pieces, with_text=False),
            )

    def _grown(self, step: Grown, pieces: JsonPieces) -> StreamEvent:
        item, number = step.item, next(self._numbers)
        if item.kind == "function_call":
            return CallArgumentsDelta(
                sequence_number=number, item_id=item.id, output_index=item.index, delta=step.text
            )
        if item.kind == "reasoning":
            return ReasoningTextDelta(
                sequence_number=number, item_id=item.id, output_index=item.index, delta=step.text
            )
        return OutputTextDelta(
            sequence_number=number,
            item_id=item.id,
            output_index=item.index,
            delta=step.text,
            logprobs=self._snapshot.logprobs(step.logprobs, pieces),
        )

    def _ended(self, item: Item, pieces: JsonPieces) -> Iterator[StreamEvent]:
        yield self._text_done(item, pieces)
        if item.kind != "function_call":
            yield ContentPartDone(
                sequence_number=next(self._numbers),
                item_id=item.id,
                output_index=item.index,
                part=self._snapshot.part(item, pieces),
            )
        shown = self._snapshot.item(item, pieces)
        yield OutputItemDone(sequence_number=next(self._numbers), output_index=item.index, item=shown)

    def _text_done(self, item: Item, pieces: JsonPieces) -> StreamEvent:
        number = next(self._numbers)
        if item.kind == "function_call":
            return CallArgumentsDone(
                sequence_number=number,
                item_id=item.id,
                output_index=item.index,
                name=item.name,
                arguments=item.text,
            )
        if item.kind == "reasoning":
            return ReasoningTextDone(
                sequence_number=number, item_id=item.id, output_index=item.index, text=item.text
            )
        return OutputTextDone(
            sequence_number=number,
            item_id=item.id,
            output_index=item.index,
            text=item.text,
            logprobs=self._snapshot.logprobs(item.logprobs, pieces),
        )
