"""The events of a stream, in their order, numbered from 0; comments may stand between any two.

response.created, response.in_progress       the response without output
response.output_item.added                   an item without text
    response.content_part.added              its part; a function_call has none
    response.output_text.delta ...           more of it: of reasoning reasoning_text.delta, of a call
                                             function_call_arguments.delta
    response.output_text.done                the whole of it
    response.content_part.done
response.output_item.done
...                                          further items
response.completed                           the whole response; or response.incomplete, or response.failed

A stream of a kept response that cannot be read any more ends with an error instead.
"""

from __future__ import annotations

from typing import get_args

import msgspec

from splitserve.frontend.openai.answers.logprobs import ChatTokenLogprob
from splitserve.frontend.responses.schema.response import OutputItem, OutputPart, ResponseObject


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    sequence_number: int


class _OfResponse(_Event, frozen=True, kw_only=True):
    response: ResponseObject


class ResponseCreated(_OfResponse, frozen=True, kw_only=True, tag="response.created"):
    """The response begins."""


class ResponseInProgress(_OfResponse, frozen=True, kw_only=True, tag="response.in_progress"):
    """The model is at work."""


class ResponseCompleted(_OfResponse, frozen=True, kw_only=True, tag="response.completed"):
    """The response has ended by itself."""


class ResponseIncomplete(_OfResponse, frozen=True, kw_only=True, tag="response.incomplete"):
    """The response has ended at a limit."""


class ResponseFailed(_OfResponse, frozen=True, kw_only=True, tag="response.failed"):
    """The response cannot go on; it holds what there is of it."""


class ErrorEvent(_Event, frozen=True, kw_only=True, tag="error"):
    """The events cannot be read any more."""

    code: str | None
    message: str
    param: str | None


class _OfItem(_Event, frozen=True, kw_only=True):
    output_index: int
    item: OutputItem


class OutputItemAdded(_OfItem, frozen=True, kw_only=True, tag="response.output_item.added"):
    """An item begins."""


class OutputItemDone(_OfItem, frozen=True, kw_only=True, tag="response.output_item.done"):
    """An item has ended."""


class _OfCall(_Event, frozen=True, kw_only=True):
    item_id: str
    output_index: int


class CallArgumentsDelta(_OfCall, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of the arguments of a call."""

    delta: str


class CallArgumentsDone(_OfCall, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    """All the arguments of a call."""

    name: str
    arguments: str


class _InPart(_OfCall, frozen=True, kw_only=True):
    content_index: int = 0


class ContentPartAdded(_InPart, frozen=True, kw_only=True, tag="response.content_part.added"):
    """A part begins."""

    part: OutputPart


class ContentPartDone(_InPart, frozen=True, kw_only=True, tag="response.content_part.done"):
    """A part has ended."""

    part: OutputPart


class OutputTextDelta(_InPart, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """More text."""

    delta: str
    logprobs: list[ChatTokenLogprob]


class OutputTextDone(_InPart, frozen=True, kw_only=True, tag="response.output_text.done"):
    """All the text of a part."""

    text: str
    logprobs: list[ChatTokenLogprob]


class ReasoningTextDelta(_InPart, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """More reasoning."""

    delta: str


class ReasoningTextDone(_InPart, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """All the reasoning of an item."""

    text: str


StreamEvent = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | CallArgumentsDelta
    | CallArgumentsDone
    | ErrorEvent
)
EVENTS: tuple[type, ...] = get_args(StreamEvent)
