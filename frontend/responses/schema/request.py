"""The request of POST /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from splitserve.engine_core.sampling_params import MAX_LOGPROBS
from splitserve.frontend.openai.schema.chat import TemplateVariables
from splitserve.frontend.openai.schema.fields import ModelName, SharedFields, ranged
from splitserve.frontend.openai.schema.tools import MAX_TOOLS
from splitserve.frontend.responses.schema.items import (
    InputItem,
    ReasoningOptions,
    ResponsesTool,
    TextOptions,
    ToolChoice,
)
from splitserve.frontend.text.chat.messages import MAX_MESSAGES

LOGPROBS: Final = "message.output_text.logprobs"

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16, description="Up to 16 pairs, returned as they came."),
]


class ResponsesStreamOptions(msgspec.Struct, frozen=True):
    """What a stream carries beside its events; there is no padding, whatever include_obfuscation says."""

    include_obfuscation: bool | None = None


class ResponsesRequest(SharedFields, frozen=True, kw_only=True):
    """The next answer of a conversation, of which the request holds all, or what follows a kept response."""

    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=MAX_MESSAGES)]
    model: ModelName | None = None
    instructions: Annotated[str | None, Meta(description="A system message before the input.")] = None
    previous_response_id: (
        Annotated[str, Meta(max_length=128, description="A kept response, whose conversation goes on.")]
        | None
    ) = None
    store: Annotated[
        bool | None, Meta(description="Keep the response. Default: true if the server has a store.")
    ] = None
    background: Annotated[
        bool | None,
        Meta(description="true: generate it whether or not the client waits; not with store: false."),
    ] = None
    tools: (
        Annotated[
            list[ResponsesTool], Meta(max_length=MAX_TOOLS, description="Functions that the model may call.")
        ]
        | None
    ) = None
    tool_choice: Annotated[
        ToolChoice | None,
        Meta(
            description="none: the model sees no tools. auto, the default: it may call them. required: it "
            "calls one or more."
        ),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Meta(description="false: only the first call of an answer is returned. Default true.")
    ] = None
    max_tool_calls: (
        Annotated[int, Meta(ge=1, description="Of tools that the server runs; it has none.")] | None
    ) = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    max_output_tokens: Annotated[
        int | None, ranged(1, 2**31 - 1, "Reasoning counts. Default: up to the context's end.")
    ] = None
    top_logprobs: Annotated[int | None, ranged(0, MAX_LOGPROBS, f"Needs include: {LOGPROBS}.")] = None
    include: (
        Annotated[
            list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]], Meta(max_length=16)
        ]
        | None
    ) = None
    metadata: Metadata | None = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None,
        Meta(description="auto: of an input that is too long, the oldest turns are left out."),
    ] = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    chat_template_kwargs: TemplateVariables | None = None
    user: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
