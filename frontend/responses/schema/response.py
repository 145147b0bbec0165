"""The response object, whole or as it stands in the events of a stream."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from splitserve.frontend.openai.answers.logprobs import ChatTokenLogprob
from splitserve.frontend.responses.schema.items import (
    ItemStatus,
    ReasoningOptions,
    ResponsesTool,
    TextOptions,
    ToolChoice,
)

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ErrorCode = Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """The text of a message; logprobs are there if they were asked for."""

    text: str
    annotations: list[Any] = msgspec.field(default_factory=list)
    logprobs: list[ChatTokenLogprob] = msgspec.field(default_factory=list)


class ReasoningTextPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"):
    """The text of reasoning."""

    text: str


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """What the model says."""

    id: str
    status: ItemStatus
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """What the model reasons before; it is not summarized."""

    id: str
    status: ItemStatus
    content: list[ReasoningTextPart]
    summary: list[Any] = msgspec.field(default_factory=list)
    encrypted_content: None = None


class FunctionCallItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A function that the model calls; arguments are JSON text as the model wrote it."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class CompactionItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="compaction"):
    """A summary of what came before; see frontend.responses.compaction.summary_seal for its content."""

    id: str
    encrypted_content: str


OutputItem = OutputMessage | ReasoningItem | FunctionCallItem
OutputPart = OutputText | ReasoningTextPart


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens of the input the prefix cache held; what is written to it is not counted."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens of the output were reasoning."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response failed; `type` and `param` are those of the error."""

    code: ErrorCode
    message: str
    param: str | None = None
    type: str | None = None


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """A response, with the fields of its request as they were understood."""

    id: str
    created_at: int
    model: str
    status: ResponseStatus
    output: list[OutputItem]
    temperature: float
    top_p: float
    text: TextOptions
    tool_choice: ToolChoice
    tools: list[ResponsesTool]
    parallel_tool_calls: bool
    reasoning: ReasoningOptions
    truncation: Literal["auto", "disabled"]
    metadata: dict[str, str]
    object: Literal["response"] = "response"
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    usage: ResponseUsage | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    top_logprobs: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    previous_response_id: str | None = None
    prompt: None = None
    background: bool = False
    store: bool = False
    service_tier: str = "default"
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
