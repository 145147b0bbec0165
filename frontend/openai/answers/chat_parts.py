"""Content, reasoning and tool calls as OpenAI's messages have them, in one piece or as deltas."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from splitserve.frontend.openai.schema.chat import (
    AnswerMessage,
    AnswerToolCall,
    CalledFunction,
    ChatDelta,
    FunctionDelta,
    ToolCallDelta,
)
from splitserve.frontend.text.answers.deltas import (
    AnswerDelta,
    CallArguments,
    CallStarted,
    ContentText,
    ReasoningText,
)

_ID_BYTES = 12


def new_call_id() -> str:
    """Return an id for a tool call that no other has."""
    return f"call_{secrets.token_hex(_ID_BYTES)}"


def chat_delta(delta: AnswerDelta) -> ChatDelta:
    """Return what is new as the delta of a chunk."""
    match delta:
        case ContentText(text):
            return ChatDelta(content=text)
        case ReasoningText(text):
            return ChatDelta(reasoning=text, reasoning_content=text)
        case CallStarted(index, name):
            function = FunctionDelta(name=name, arguments="")
            return ChatDelta(
                tool_calls=[ToolCallDelta(index=index, id=new_call_id(), type="function", function=function)]
            )
        case CallArguments(index, text):
            function = FunctionDelta(arguments=text)
            return ChatDelta(tool_calls=[ToolCallDelta(index=index, function=function)])


@dataclass(slots=True)
class _Call:
    name: str
    arguments: list[str] = field(default_factory=list)


class MessageParts:
    """Collects one message from what is new of it."""

    __slots__ = ("_calls", "_content", "_reasoning")

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []

    def add(self, deltas: Sequence[AnswerDelta]) -> None:
        """Take what is new."""
        for delta in deltas:
            match delta:
                case ContentText(text):
                    self._content.append(text)
                case ReasoningText(text):
                    self._reasoning.append(text)
                case CallStarted(_, name):
                    self._calls.append(_Call(name))
                case CallArguments(index, text):
                    self._calls[index].arguments.append(text)

    def message(self, opened: AnswerMessage) -> AnswerMessage:
        """Return the message.

        Args:
            opened: as it stood before the first token: its role, and the text that is echoed.
        """
        content = (opened.content or "") + "".join(self._content)
        reasoning = "".join(self._reasoning) or None
        calls = [
            AnswerToolCall(id=new_call_id(), function=CalledFunction(call.name, "".join(call.arguments)))
            for call in self._calls
        ]
        return AnswerMessage(
            role=opened.role,
            content=content or (None if calls or reasoning else ""),
            reasoning=reasoning,
            reasoning_content=reasoning,
            tool_calls=calls or UNSET,
        )
