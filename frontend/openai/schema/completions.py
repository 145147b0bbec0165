"""Request and response of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from splitserve.engine_core.sampling_params import MAX_LOGPROBS
from splitserve.frontend.metrics.request_metrics import RequestMetrics
from splitserve.frontend.openai.answers.logprobs import PromptLogprobs
from splitserve.frontend.openai.answers.usage import Usage
from splitserve.frontend.openai.schema.fields import GenerationFields, ranged

MAX_PROMPTS = 256
DEFAULT_MAX_TOKENS = 16


class CompletionRequest(GenerationFields, frozen=True, kw_only=True):
    """Text completion of one prompt or several."""

    prompt: Annotated[
        str | Annotated[list[str | int | list[int]], Meta(min_length=1)],
        Meta(
            description=f"A text, a list of token ids, or a list of up to {MAX_PROMPTS} of either, not mixed."
        ),
    ]
    max_tokens: Annotated[
        int | None, ranged(0, 2**31 - 1, f"Default {DEFAULT_MAX_TOKENS}. 0 runs the prompt only.")
    ] = None
    logprobs: Annotated[int | None, ranged(0, MAX_LOGPROBS, "Alternatives per token.")] = None
    echo: Annotated[bool | None, Meta(description="Put the prompt before the completion.")] = None
    add_special_tokens: Annotated[
        bool | None, Meta(description="Default true: BOS and the like for text.")
    ] = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Logprobs in columns, one entry per token; the first prompt token of an echo has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, or in a stream what is new of it.

    What was not asked for is null in a whole answer and left out in a stream.
    """

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType | None = None
    prompt_token_ids: list[int] | UnsetType | None = None
    prompt_logprobs: PromptLogprobs | UnsetType | None = None
    routed_experts: UnsetType | None = None


class CompletionResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a request without stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    object: str = "text_completion"
    service_tier: None = None
    system_fingerprint: str | None = None
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    metrics: RequestMetrics | None = None


class CompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream; the usage chunk has no choices."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: str = "text_completion"
    system_fingerprint: str | None = None
    usage: Usage | UnsetType | None = UNSET
    metrics: RequestMetrics | UnsetType = UNSET
