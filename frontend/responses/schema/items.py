"""What a conversation consists of, and how it may go on: the items, tools and options of a request."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from splitserve.frontend.openai.schema.tools import MAX_TOOLS, NAME_PATTERN
from splitserve.frontend.text.chat.messages import MAX_FUNCTION_NAME_CHARS

MAX_PARTS = 4096
MAX_CALL_ID_CHARS = 256
# Type of an item -> the fields that it needs.
NEEDED_FIELDS = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": (),
    "compaction": ("encrypted_content",),
}
# Type of a part -> the field that holds its text.
PART_FIELDS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
# Those of reasoning.
REASONING_PARTS = ("reasoning_text", "text")


class InputPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message, or of a function's output; only text is served, an earlier refusal is one too."""

    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: Annotated[list[dict[str, Any]], Meta(description="Of an earlier answer.")] | None = None
    logprobs: Annotated[list[dict[str, Any]], Meta(description="Of an earlier answer.")] | None = None


class ReasoningPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an earlier answer's reasoning."""

    text: str
    type: str | None = None


Parts = Annotated[list[InputPart], Meta(max_length=MAX_PARTS)]
ReasoningParts = Annotated[list[ReasoningPart], Meta(max_length=MAX_PARTS)]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputItem(msgspec.Struct, frozen=True, kw_only=True):
    """A message, function_call, function_call_output, reasoning or compaction; without a type a message.

    Attributes:
        role: of a message.
        content: of a message, or of reasoning.
        call_id: of a call and of its output.
        name: of a call.
        arguments: of a call, JSON text.
        output: of a function_call_output.
        summary: of reasoning; the model gets it to see if there is no content.
        encrypted_content: of a compaction; that of reasoning is ignored, since nothing is encrypted here.
        id: as the answer had it; ignored.
        status: as the answer had it; ignored.
        phase: as the answer had it; ignored.
        created_by: as the answer had it; ignored.
    """

    type: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | Parts | None = None
    call_id: Annotated[str, Meta(max_length=MAX_CALL_ID_CHARS)] | None = None
    name: Annotated[str, Meta(max_length=MAX_FUNCTION_NAME_CHARS)] | None = None
    arguments: str | None = None
    output: str | Parts | None = None
    summary: ReasoningParts | None = None
    encrypted_content: str | None = None
    id: str | None = None
    status: ItemStatus | None = None
    phase: str | None = None
    created_by: str | None = None


class ResponsesTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call; the server has no tools of its own."""

    type: str
    name: (
        Annotated[
            str,
            Meta(
                description="1 to 64 letters, digits, _ and -.",
                extra_json_schema={"pattern": NAME_PATTERN},
            ),
        ]
        | None
    ) = None
    description: str | None = None
    parameters: Annotated[
        dict[str, Any] | None, Meta(description="JSON schema of the arguments. Default: no arguments.")
    ] = None
    strict: bool | None = None


class AllowedTool(msgspec.Struct, frozen=True, kw_only=True):
    """One of the tools that the model may use."""

    type: str
    name: str | None = None


class ResponsesToolChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function that has to be called, or which of the tools may be.

    Attributes:
        type: function or allowed_tools.
        name: of the function.
        mode: with allowed_tools: whether one has to be called.
        tools: with allowed_tools: the model sees all, but may call these only.
    """

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[AllowedTool], Meta(min_length=1, max_length=MAX_TOOLS)] | None = None


ToolChoice = Literal["none", "auto", "required"] | ResponsesToolChoice


class TextFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which form the text has; all but type are for json_schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the text is to be."""

    format: TextFormat | None = None
    verbosity: Annotated[
        Literal["low", "medium", "high"] | None, Meta(description="Accepted and ignored.")
    ] = None


class ReasoningOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the model reasons; its reasoning is given whole, so no summary is made."""

    effort: str | None = None
    summary: Annotated[str | None, Meta(description="Accepted and ignored.")] = None
    generate_summary: Annotated[str | None, Meta(description="Accepted and ignored.")] = None
