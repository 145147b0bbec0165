"""The events of a streamed message.

What is new                  opens a block, if none of its kind is open, and adds a delta to it
a call                       always opens one
the end                      closes the block; message_delta and message_stop follow
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from splitserve.frontend.anthropic.answer import new_tool_use_id, stop_of, usage_of
from splitserve.frontend.anthropic.schema.events import (
    BlockDelta,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    InputJsonDelta,
    MessageDelta,
    MessageStart,
    MessageStop,
    SignatureDelta,
    StopDelta,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
)
from splitserve.frontend.anthropic.schema.response import (
    ContentBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from splitserve.frontend.engines.connection.token_relay import Frame
from splitserve.frontend.engines.generation import OutputDelta
from splitserve.frontend.http.response.sse import named_event
from splitserve.frontend.openai.answers.choice_reader import ChoiceReaders
from splitserve.frontend.openai.context import ResponseHead
from splitserve.frontend.openai.generation_run import GenerationRun
from splitserve.frontend.openai.run_events import Event
from splitserve.frontend.text.answers.deltas import (
    AnswerDelta,
    CallArguments,
    CallStarted,
    ContentText,
    ReasoningText,
)

_encode = msgspec.json.Encoder().encode

# The event of more text in the first block, around that text.
_PREFIX, _SUFFIX = named_event(ContentBlockDelta(0, TextDelta("|"))).split(b'"|"')


class EventWriter:
    """The events of one stream; plain text goes between bytes prepared once."""

    def __init__(self, head: ResponseHead, run: GenerationRun, readers: ChoiceReaders | None) -> None:
        """Prepare.

        Args:
            head: of the answer.
            run: its run.
            readers: tell content, reasoning and tool calls apart; None if all text is content.
        """
        self._head = head
        self._run = run
        self._readers = readers
        self._started = False
        self._stop = StopDelta("end_turn", None)
        # The open block, and how many were opened.
        self._kind: Literal["text", "thinking", "tool_use"] | None = None
        self._num_blocks = 0

    def first_events(self) -> bytes:
        """Return nothing: how much of the prompt was cached is known with the first delta."""
        return b""

    def chunk(self, prompt_idx: int, delta: OutputDelta) -> Event:
        """Return the events of one delta; b"" if it shows nothing."""
        events = [] if self._started else [self._start()]
        if self._readers is None:
            # Open before there is text: native code, which may write it, opens none.
            events += self._open("text", TextBlock(""))
            finish_reason = delta.finish_reason
            found: Sequence[AnswerDelta] = [ContentText(delta.text)] if delta.text else []
        else:
            found = self._readers.read(delta)
            finish_reason = self._readers.finish_reason(delta)
        events += [event for each in found for event in self._events(each)]
        if finish_reason is not None:
            self._stop = stop_of(finish_reason, delta.stop_reason)
        return b"".join(map(named_event, events))

    def frame(self) -> Frame | None:
        """Return what stands around plain text, if all text is content."""
        return Frame(_PREFIX, _SUFFIX) if self._readers is None else None

    def last_events(self) -> bytes:
        """Return the end of the message."""
        events = [] if self._started else [self._start()]
        if not self._num_blocks:
            events += self._open("text", TextBlock(""))
        events += [*self._close(), MessageDelta(self._stop, usage_of(self._run.usage)), MessageStop()]
        return b"".join(map(named_event, events))

    def _start(self) -> StreamEvent:
        self._started = True
        return MessageStart(
            Message(
                id=self._head.id,
                model=self._head.model,
                content=[],
                stop_reason=None,
                stop_sequence=None,
                usage=usage_of(self._run.usage),
            )
        )

    def _events(self, delta: AnswerDelta) -> list[StreamEvent]:
        match delta:
            case ContentText(text):
                return [*self._open("text", TextBlock("")), self._more(TextDelta(text))]
            case ReasoningText(text):
                return [*self._open("thinking", ThinkingBlock("")), self._more(ThinkingDelta(text))]
            case CallStarted(_, name):
                closed = self._close()
                return [*closed, *self._open("tool_use", ToolUseBlock(new_tool_use_id(), name, {}))]
            case CallArguments(_, text):
                return [self._more(InputJsonDelta(text))]

    def _open(self, kind: Literal["text", "thinking", "tool_use"], block: ContentBlock) -> list[StreamEvent]:
        if self._kind == kind:
            return []
        closed = self._close()
        self._kind = kind
        self._num_blocks += 1
        return [*closed, ContentBlockStart(self._num_blocks - 1, block)]

    def _more(self, delta: BlockDelta) -> StreamEvent:
        return ContentBlockDelta(self._num_blocks - 1, delta)

    def _close(self) -> list[StreamEvent]:
        if self._kind is None:
            return []
        signed = [self._more(SignatureDelta())] if self._kind == "thinking" else []
        self._kind = None
        return [*signed, ContentBlockStop(self._num_blocks - 1)]
