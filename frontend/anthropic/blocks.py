"""Collects the blocks of a whole message from what is new of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from splitserve.frontend.anthropic.answer import new_tool_use_id
from splitserve.frontend.anthropic.schema.response import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from splitserve.frontend.text.answers.deltas import (
    AnswerDelta,
    CallArguments,
    CallStarted,
    ContentText,
    ReasoningText,
)


@dataclass(slots=True)
class _Block:
    kind: Literal["text", "thinking", "tool_use"]
    name: str = ""
    texts: list[str] = field(default_factory=list)

    def block(self) -> ContentBlock:
        text = "".join(self.texts)
        match self.kind:
            case "text":
                return TextBlock(text)
            case "thinking":
                return ThinkingBlock(text)
            case "tool_use":
                return ToolUseBlock(new_tool_use_id(), self.name, read_input(text))


class Blocks:
    """The blocks of one message, in the order in which the model wrote them."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def add(self, deltas: Sequence[AnswerDelta]) -> None:
        """Take what is new."""
        for delta in deltas:
            match delta:
                case ContentText(text):
                    self._open("text").texts.append(text)
                case ReasoningText(text):
                    self._open("thinking").texts.append(text)
                case CallStarted(_, name):
                    self._blocks.append(_Block("tool_use", name))
                case CallArguments(_, text):
                    self._blocks[-1].texts.append(text)

    def _open(self, kind: Literal["text", "thinking"]) -> _Block:
        if not self._blocks or self._blocks[-1].kind != kind:
            self._blocks.append(_Block(kind))
        return self._blocks[-1]

    def content(self) -> list[ContentBlock]:
        """Return the content; an empty answer is a text of no characters, which clients look for."""
        return [each.block() for each in self._blocks] or [TextBlock("")]


def read_input(text: str) -> dict[str, Any]:
    """Return the input of a tool; what is no JSON object, as it was cut off, stands under INVALID_JSON."""
    try:
        found = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"INVALID_JSON": text}
