"""Requests and responses of POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from splitserve.frontend.openai.schema.chat import (
    AddGenerationPrompt,
    AddSpecialTokens,
    ContinueFinalMessage,
    Documents,
    Effort,
    TemplateVariables,
    Tools,
)
from splitserve.frontend.openai.schema.fields import ModelName, TokenId
from splitserve.frontend.text.chat.messages import MAX_MESSAGES, ChatMessage

MAX_TOKENS = 2**20


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A text (`prompt`) or a conversation (`messages`), exactly one of them."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    return_token_strs: bool | None = None
    add_special_tokens: AddSpecialTokens = None
    add_generation_prompt: AddGenerationPrompt = None
    continue_final_message: ContinueFinalMessage = None
    documents: Documents | None = None
    chat_template_kwargs: TemplateVariables | None = None
    reasoning_effort: Effort | None = None
    tools: Tools | None = None


class TokenizeResponse(msgspec.Struct, frozen=True):
    """Token ids; `token_strs` holds the vocabulary's spellings when asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids of one text."""

    tokens: Annotated[list[TokenId], Meta(max_length=MAX_TOKENS)]
    model: ModelName | None = None


class DetokenizeResponse(msgspec.Struct, frozen=True):
    """The text, special tokens included."""

    prompt: str
