"""The items of a request → the messages of a chat.

item                      becomes
instructions              a first message of role system
message                   a message; one of the assistant continues its turn, if that has no content yet
reasoning                 reasoning of the assistant's turn, which the template shows or leaves out
function_call             a tool call of the assistant's turn
function_call_output      a message of role tool, in the place where it stands
compaction                a turn of the assistant that holds the summary; messages of the user that precede
                          it become one, since many templates want turns to alternate
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.responses.compaction.summary_seal import SummarySeal
from splitserve.frontend.responses.schema.items import (
    NEEDED_FIELDS,
    PART_FIELDS,
    REASONING_PARTS,
    InputItem,
    InputPart,
)
from splitserve.frontend.text.chat.messages import ChatMessage, ContentPart, FunctionCall, ToolCall

# What a summary begins with when the model reads it.
_SUMMARY = "Summary of our conversation up to here:\n\n"

Content = str | list[ContentPart | str]


@dataclass(slots=True)
class _Turn:
    """The assistant's turn as far as it has come."""

    content: Content | None = None
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def message(self) -> ChatMessage:
        content = self.content if self.content is not None or self.calls else ""
        reasoning = "\n".join(self.thoughts) or None
        return ChatMessage(
            role="assistant",
            content=content,
            reasoning=reasoning,
            reasoning_content=reasoning,
            tool_calls=self.calls or None,
        )


class _History:
    """Collects the messages of the chat."""

    def __init__(self, seal: SummarySeal) -> None:
        self.messages: list[ChatMessage] = []
        self._seal = seal
        self._turn: _Turn | None = None
        self._call_ids: set[str | None] = set()

    def add(self, item: InputItem, path: str) -> None:
        """Take the next item."""
        kind = _checked_type(item, path)
        if kind == "function_call":
            function = FunctionCall(item.name or "", item.arguments)
            self._open().calls.append(ToolCall(function=function, id=item.call_id))
            self._call_ids.add(item.call_id)
        elif kind == "reasoning":
            self._begin().thoughts += _thoughts(item, path)
        elif kind == "function_call_output":
            content = _content(item.output or "", f"{path}.output")
            if item.call_id not in self._call_ids:
                # In OpenAI's words.
                text = f"No tool call found for function call output with call_id {str(item.call_id)[:128]}."
                raise InvalidRequestError(text, f"{path}.call_id")
            self._append(ChatMessage(role="tool", content=content, tool_call_id=item.call_id))
        elif kind == "compaction":
            self._join_user_messages()
            summary = self._seal.open(item.encrypted_content or "", f"{path}.encrypted_content")
            self._append(ChatMessage(role="assistant", content=_SUMMARY + summary))
        else:
            content = _content(item.content or "", f"{path}.content")
            if item.role == "assistant":
                self._begin().content = content
            else:
                self._append(ChatMessage(role=item.role or "user", content=content))

    def close(self) -> None:
        """End the assistant's turn, if there is one."""
        if self._turn is not None:
            self.messages.append(self._turn.message())
            self._turn = None

    def _join_user_messages(self) -> None:
        self.close()
        texts: list[str] = []
        while self.messages and self.messages[-1].role == "user":
            texts = [*self.messages.pop().texts(), *texts]
        if texts:
            self.messages.append(ChatMessage(role="user", content="\n\n".join(texts)))

    def _append(self, message: ChatMessage) -> None:
        self.close()
        self.messages.append(message)

    def _open(self) -> _Turn:
        self._turn = self._turn or _Turn()
        return self._turn

    def _begin(self) -> _Turn:
        """Return a turn that has only reasoning, if anything: the one that is open, or the next."""
        if self._turn is not None and (self._turn.content is not None or self._turn.calls):
            self.close()
        return self._open()


def chat_messages(
    instructions: str | None,
    given: str | Sequence[InputItem],
    seal: SummarySeal,
    earlier: Sequence[InputItem] = (),
) -> list[ChatMessage]:
    """Return the messages of the chat.

    Args:
        instructions: of the request.
        given: the input of the request.
        seal: of summaries in it.
        earlier: items before it, which are known to be served.

    Raises:
        InvalidRequestError: an item is of a type that is not served, lacks a field, is the output of a call
            that was not made, or a summary that is not of this server; the error names it.
    """
    history = _History(seal)
    if instructions:
        history.messages.append(ChatMessage(role="system", content=instructions))
    for i, item in enumerate(earlier):
        history.add(item, f"previous_response_id: input[{i}]")
    items = [InputItem(role="user", content=given)] if isinstance(given, str) else given
    for i, item in enumerate(items):
        history.add(item, f"input[{i}]")
    history.close()
    return history.messages


def _checked_type(item: InputItem, path: str) -> str:
    kind = item.type or "message"
    if kind == "item_reference":
        raise _not_served(f"{path}.type: items cannot be named, use previous_response_id", path)
    if kind not in NEEDED_FIELDS:
        served = ", ".join(NEEDED_FIELDS)
        raise _not_served(f"{path}.type: {kind[:64]!r} is not supported; it may be {served}", path)
    for name in NEEDED_FIELDS[kind]:
        if getattr(item, name) is None:
            raise InvalidRequestError(
                f"{path}.{name} is missing", f"{path}.{name}", "missing_required_parameter"
            )
    return kind


def _not_served(message: str, path: str) -> InvalidRequestError:
    return InvalidRequestError(message, f"{path}.type", "unsupported_parameter")


def _content(parts: str | Sequence[InputPart], path: str) -> Content:
    """Return texts as a message's content: parts only where there are several."""
    if isinstance(parts, str):
        return parts
    texts = [_text(part, PART_FIELDS, f"{path}[{i}]") for i, part in enumerate(parts)]
    if len(texts) > 1:
        return [ContentPart(text=text) for text in texts]
    return texts[0] if texts else ""


def _text(part: InputPart, fields: dict[str, str], path: str) -> str:
    name = fields.get(part.type)
    if name is None:
        served = ", ".join(fields)
        raise _not_served(f"{path}.type: {part.type[:64]!r} is not supported; it may be {served}", path)
    text: str | None = getattr(part, name)
    if text is None:
        raise InvalidRequestError(f"{path}.{name} is missing", f"{path}.{name}", "missing_required_parameter")
    return text


def _thoughts(item: InputItem, path: str) -> list[str]:
    """Return the texts of reasoning, or of its summary."""
    if not item.content:
        return [part.text for part in item.summary or ()]
    if isinstance(item.content, str):
        return [item.content]
    fields = dict.fromkeys(REASONING_PARTS, "text")
    return [_text(part, fields, f"{path}.content[{i}]") for i, part in enumerate(item.content)]
