"""Request and response of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from splitserve.engine_core.sampling_params import MAX_LOGPROBS, MAX_THINKING_TOKENS
from splitserve.frontend.metrics.request_metrics import RequestMetrics
from splitserve.frontend.openai.answers.logprobs import ChatLogprobs, PromptLogprobs
from splitserve.frontend.openai.answers.usage import Usage
from splitserve.frontend.openai.schema.fields import GenerationFields, ranged
from splitserve.frontend.openai.schema.tools import MAX_TOOLS, Tool, ToolChoice
from splitserve.frontend.text.chat.messages import MAX_MESSAGES, ChatMessage
from splitserve.frontend.text.chat.thinking import ReasoningEffort

JsonScalar = str | int | float | bool | None

# How messages become a prompt; /tokenize takes the same fields.
AddGenerationPrompt = Annotated[bool | None, Meta(description="Open the assistant's turn. Default true.")]
ContinueFinalMessage = Annotated[
    bool | None,
    Meta(description="Go on with the text of the last message; excludes add_generation_prompt: true."),
]
AddSpecialTokens = Annotated[
    bool | None, Meta(description="Add BOS and the like. Default true for text, false for messages.")
]
Documents = Annotated[list[dict[str, str]], Meta(max_length=256, description="Passed to the template.")]
VariableName = Annotated[
    str,
    Meta(
        extra_json_schema={
            "pattern": "^[A-Za-z][A-Za-z0-9_]*$",
            "not": {"enum": ["messages", "tools", "documents", "add_generation_prompt"]},
        }
    ),
]
TemplateVariables = Annotated[
    dict[VariableName, JsonScalar],
    Meta(max_length=32, description="Further variables of the checkpoint's template."),
]
Effort = Annotated[
    ReasoningEffort,
    Meta(
        description="How hard the model is to think, for its template; none: not at all. Templates that do "
        "not look for it do as always."
    ),
]
Tools = Annotated[list[Tool], Meta(max_length=MAX_TOOLS, description="Functions that the model may call.")]


class PredictedText(msgspec.Struct, frozen=True):
    """A part of what is expected."""

    type: Literal["text"]
    text: str


class Prediction(msgspec.Struct, frozen=True):
    """What the answer is expected to be like, such as a file before an edit."""

    type: Literal["content"]
    content: str | Annotated[list[PredictedText], Meta(max_length=MAX_MESSAGES)]

    @property
    def text(self) -> str:
        """All of it."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(GenerationFields, frozen=True, kw_only=True):
    """The next message of a conversation."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: Annotated[int | None, ranged(1, 2**31 - 1, "Default: up to the context's end.")] = None
    max_completion_tokens: Annotated[int | None, ranged(1, 2**31 - 1, "Goes before max_tokens.")] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, ranged(0, MAX_LOGPROBS, "Needs logprobs.")] = None
    add_generation_prompt: AddGenerationPrompt = None
    continue_final_message: ContinueFinalMessage = None
    echo: Annotated[
        bool | None, Meta(description="Put the last message before the answer if that goes on with its turn.")
    ] = None
    add_special_tokens: AddSpecialTokens = None
    documents: Documents | None = None
    chat_template_kwargs: TemplateVariables | None = None
    reasoning_effort: Effort | None = None
    tools: Tools | None = None
    tool_choice: Annotated[
        ToolChoice | None,
        Meta(
            description="none: the model sees no tools. auto, the default: it may call them. required: it "
            "calls at least one. A function by name: it calls that one, once."
        ),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Meta(description="false: there is at most one call in an answer. Default true.")
    ] = None
    thinking_token_budget: Annotated[
        int | None, ranged(0, MAX_THINKING_TOKENS, "Most tokens of reasoning, whose end is then forced.")
    ] = None
    prediction: Annotated[
        Prediction | None,
        Meta(
            description="Drafted where the server speculates: an answer that repeats it comes sooner. It "
            "changes no token."
        ),
    ] = None
    include_reasoning: Annotated[
        bool | None, Meta(description="false: reasoning is left out of the answer. Default true.")
    ] = None


class CalledFunction(msgspec.Struct, frozen=True):
    """Which function the model calls; arguments are JSON text as the model wrote it."""

    name: str
    arguments: str


class AnswerToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The model's message; what is always null stands here for clients that read it without a look."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[AnswerToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the n answers."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    routed_experts: None = None


class ChatResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a request without stream; what was not asked for is null."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: str = "chat.completion"
    service_tier: None = None
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_text: None = None
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    metrics: RequestMetrics | None = None


# A chunk has a field only when there is something to say: a stream is mostly its chunks.
class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of the function of a call; its name comes first, and only once."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of a call; the first one carries id, type and name."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of a message; the first one of a choice carries the role."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream; the usage chunk has no choices."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    object: str = "chat.completion.chunk"
    system_fingerprint: str | None = None
    usage: Usage | UnsetType | None = UNSET
    metrics: RequestMetrics | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
