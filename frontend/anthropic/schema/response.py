"""Answers of the Messages API: the whole message, its blocks, and how many tokens it took."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Text."""

    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """What the model thought before it answered; nothing is signed."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call of a tool. Input that is not a JSON object stands as text under INVALID_JSON."""

    id: str
    name: str
    input: dict[str, Any]


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessagesUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens; the prompt's are input_tokens and cache_read_input_tokens together."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """The answer."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage


class TokenCount(msgspec.Struct, frozen=True):
    """How many tokens a prompt has."""

    input_tokens: int
