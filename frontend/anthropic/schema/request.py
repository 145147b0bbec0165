"""Requests of POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from splitserve.engine_core.sampling_params import MAX_STOP_STRINGS, MAX_THINKING_TOKENS
from splitserve.frontend.openai.schema.fields import ModelName, StopString, listed, ranged
from splitserve.frontend.openai.schema.tools import MAX_TOOLS, NAME_PATTERN
from splitserve.frontend.text.chat.messages import MAX_FUNCTION_NAME_CHARS, MAX_MESSAGES

CacheControl = Annotated[
    dict[str, Any], Meta(description="Accepted and ignored: equal prefixes are cached by themselves.")
]
MAX_BLOCKS = 4096


class TextBlockParam(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the system prompt, or of a tool's result; only text is served."""

    type: str
    text: str | None = None
    cache_control: CacheControl | None = None


class ContentBlockParam(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message: text, thinking, redacted_thinking, tool_use or tool_result.

    Attributes:
        text: of text.
        thinking: of thinking.
        signature: of thinking; nothing is signed here, so any will do.
        data: of redacted_thinking, which the model does not get to see.
        id: of tool_use.
        name: of tool_use.
        input: of tool_use.
        tool_use_id: of tool_result.
        content: of tool_result.
        is_error: of tool_result.
    """

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: Annotated[str, Meta(max_length=MAX_FUNCTION_NAME_CHARS)] | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | Annotated[list[TextBlockParam], Meta(max_length=MAX_BLOCKS)] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


class MessageParam(msgspec.Struct, frozen=True, kw_only=True):
    """One turn; turns of the same role in a row are one."""

    role: Literal["user", "assistant"]
    content: str | Annotated[list[ContentBlockParam], Meta(max_length=MAX_BLOCKS)]


class MessagesTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of the client's own."""

    name: Annotated[
        str,
        Meta(description="1 to 64 letters, digits, _ and -.", extra_json_schema={"pattern": NAME_PATTERN}),
    ]
    input_schema: Annotated[dict[str, Any] | None, Meta(description="JSON schema of the input.")] = None
    description: str | None = None
    type: Annotated[str | None, Meta(description='"custom", the default, is the only one served.')] = None
    strict: bool | None = None
    cache_control: CacheControl | None = None


class MessagesToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Whether and which tools are used; `name` is for type tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the model thinks before it answers, and whether the answer shows it."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[
        int | None, ranged(1, MAX_THINKING_TOKENS, "With enabled: most tokens of thinking.")
    ] = None
    display: Annotated[
        Literal["summarized", "omitted"] | None,
        Meta(description="omitted: thinking is left out. It is never summarized."),
    ] = None


class JsonOutputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON schema that the text of the answer is valid for."""

    type: Literal["json_schema"]
    schema: Annotated[dict[str, Any], Meta(description="See docs/structured-outputs.md.")]


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the answer has to be, and how hard the model is to think."""

    format: JsonOutputFormat | None = None
    effort: Annotated[
        Literal["low", "medium", "high", "xhigh", "max"] | None,
        Meta(description="How hard the model is to think, for templates that look for it."),
    ] = None


class Metadata(msgspec.Struct, frozen=True):
    """About the request; changes nothing."""

    user_id: str | None = None


class PromptFields(msgspec.Struct, frozen=True, kw_only=True):
    """What the prompt is made of."""

    messages: Annotated[list[MessageParam], Meta(min_length=1, max_length=MAX_MESSAGES)]
    model: ModelName | None = None
    system: str | Annotated[list[TextBlockParam], Meta(max_length=MAX_BLOCKS)] | None = None
    tools: Annotated[list[MessagesTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None


class CountTokensRequest(PromptFields, frozen=True, kw_only=True):
    """A conversation whose tokens are counted."""


class MessagesRequest(PromptFields, frozen=True, kw_only=True):
    """A conversation to go on with; if its last turn is the assistant's, the answer continues that turn."""

    max_tokens: Annotated[int, ranged(1, 2**31 - 1, "Most tokens of the answer.")]
    temperature: Annotated[float | None, ranged(0, 2, "0 is greedy. Default: the checkpoint's, else 1.")] = (
        None
    )
    top_p: Annotated[
        float | None, ranged(0, 1, "Probability mass kept. Default: the checkpoint's, else 1.", above=True)
    ] = None
    top_k: Annotated[int | None, ranged(-1, 2**31 - 1, "Tokens kept; 0 and -1 keep all.")] = None
    stop_sequences: Annotated[list[StopString], listed(0, MAX_STOP_STRINGS)] | None = None
    stream: bool | None = None
    output_config: OutputConfig | None = None
    metadata: Metadata | None = None
