"""The events of a stream, in their order; a ping may stand between any two.

message_start                  the message without content
content_block_start        a block without text
content_block_delta ...    more of its text
content_block_stop
...                        further blocks
message_delta                  why it stopped, and its usage
message_stop
error                          instead of the rest
"""

from __future__ import annotations

import msgspec

from splitserve.frontend.anthropic.schema.response import ContentBlock, Message, MessagesUsage, StopReason


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """More thinking."""

    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """The end of a block of thinking."""

    signature: str = ""


class InputJsonDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """More of a tool's input, as JSON text."""

    partial_json: str


BlockDelta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    """The message begins."""

    message: Message


class ContentBlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A block begins."""

    index: int
    content_block: ContentBlock


class ContentBlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """A block goes on."""

    index: int
    delta: BlockDelta


class ContentBlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """A block is complete."""

    index: int


class StopDelta(msgspec.Struct, frozen=True):
    """Why the message stopped."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The message has stopped; the usage is that of all of it."""

    delta: StopDelta
    usage: MessagesUsage


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The end."""


class Ping(msgspec.Struct, frozen=True, tag_field="type", tag="ping"):
    """Nothing new."""


StreamEvent = (
    MessageStart
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
    | Ping
)
EVENTS = (
    MessageStart,
    ContentBlockStart,
    ContentBlockDelta,
    ContentBlockStop,
    MessageDelta,
    MessageStop,
    Ping,
)
