"""The conversation of a request → the messages of a chat.

block                  becomes
system                 a first message of role system
text                   content of its turn
thinking               reasoning of its turn, which the template shows or leaves out
redacted_thinking      nothing: only Anthropic can read it
tool_use               a tool call of its turn
tool_result            a message of role tool, in the place where it stands
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.anthropic.schema.request import ContentBlockParam, MessageParam, TextBlockParam
from splitserve.frontend.text.chat.messages import ChatMessage, ContentPart, FunctionCall, ToolCall

# Role of a message -> the types of block that it may have.
_TYPES = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
}
# Type of a block -> the fields that it needs.
_NEEDED = {
    "text": ("text",),
    "thinking": ("thinking",),
    "redacted_thinking": (),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
}
# Templates have no field for it.
_ERROR = "Error: "
_EMPTY = ContentBlockParam(type="text", text="")


def chat_messages(
    system: str | Sequence[TextBlockParam] | None, messages: Sequence[MessageParam]
) -> list[ChatMessage]:
    """Return the messages of the chat.

    Raises:
        InvalidRequestError: a block is of a type that is not served, or lacks a field; the error names it.
    """
    found = []
    if system:
        found.append(ChatMessage(role="system", content=_content(_texts(system, "system"))))
    blocks = [
        (message.role, _blocks(message, f"messages[{i}].content")) for i, message in enumerate(messages)
    ]
    for role, turns in groupby(blocks, key=lambda pair: pair[0]):
        joined = [block for _, turn in turns for block in turn]
        found += [_assistant(joined)] if role == "assistant" else _user(joined)
    return found


def _blocks(message: MessageParam, path: str) -> Sequence[ContentBlockParam]:
    """Return the blocks of a message, checked; at least one, as a turn of nothing is a turn."""
    if isinstance(message.content, str):
        return [ContentBlockParam(type="text", text=message.content)]
    for i, block in enumerate(message.content):
        _check(block, message.role, f"{path}[{i}]")
    return message.content or [_EMPTY]


def _check(block: ContentBlockParam, role: str, path: str) -> None:
    if block.type not in _TYPES[role]:
        raise _not_served(block.type, path, _TYPES[role])
    for name in _NEEDED[block.type]:
        if getattr(block, name) is None:
            raise _missing(f"{path}.{name}")
    if block.type == "tool_result" and block.content is not None:
        _texts(block.content, f"{path}.content")


def _not_served(kind: str, path: str, served: Sequence[str]) -> InvalidRequestError:
    return InvalidRequestError(
        f"{path}.type: {kind[:64]!r} is not supported here; it may be {', '.join(served)}",
        f"{path}.type",
        "unsupported_parameter",
    )


def _missing(path: str) -> InvalidRequestError:
    return InvalidRequestError(f"{path} is missing", path, "missing_required_parameter")


def _texts(content: str | Sequence[TextBlockParam], path: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    found = []
    for i, block in enumerate(content):
        if block.type != "text":
            raise _not_served(block.type, f"{path}[{i}]", ("text",))
        if block.text is None:
            raise _missing(f"{path}[{i}].text")
        found.append(block.text)
    return found


def _content(texts: Sequence[str]) -> str | list[ContentPart | str]:
    """Return texts as a message's content: parts only where there are several."""
    if len(texts) > 1:
        return [ContentPart(text=text) for text in texts]
    return texts[0] if texts else ""


def _user(blocks: Sequence[ContentBlockParam]) -> Iterator[ChatMessage]:
    """Yield the messages of a user's turn: text in a row is one, and each result is one of its own."""
    for kind, same in groupby(blocks, key=lambda block: block.type):
        if kind == "text":
            yield ChatMessage(role="user", content=_content([block.text or "" for block in same]))
        else:
            yield from map(_result, same)


def _result(block: ContentBlockParam) -> ChatMessage:
    texts = _texts(block.content or "", "content")
    if block.is_error:
        texts = [_ERROR + "".join(texts[:1]), *texts[1:]]
    return ChatMessage(role="tool", content=_content(texts), tool_call_id=block.tool_use_id)


@dataclass(slots=True)
class _Turn:
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)


def _assistant(blocks: Sequence[ContentBlockParam]) -> ChatMessage:
    turn = _Turn()
    for block in blocks:
        match block.type:
            case "text":
                turn.texts.append(block.text or "")
            case "thinking":
                turn.thoughts.append(block.thinking or "")
            case "tool_use":
                function = FunctionCall(block.name or "", block.input)
                turn.calls.append(ToolCall(function=function, id=block.id))
    reasoning = "\n".join(turn.thoughts) or None
    return ChatMessage(
        role="assistant",
        content=None if turn.calls and not turn.texts else _content(turn.texts),
        reasoning=reasoning,
        reasoning_content=reasoning,
        tool_calls=turn.calls or None,
    )
