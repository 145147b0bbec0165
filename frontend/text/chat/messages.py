"""What may a conversation contain, over HTTP and in a script, and in what form do templates get it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.text.chat.control_tokens import JsonValue
from splitserve.frontend.typed_json.faults import Fault, find_fault
from splitserve.frontend.typed_json.unknown import UnknownField, unknown_fields

Message = Mapping[str, JsonValue]

MAX_MESSAGES = 4096
MAX_ROLE_CHARS = 64
MAX_FUNCTION_NAME_CHARS = 256
# Type of a content part -> the field that holds its text.
PART_FIELDS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
# Templates do not know "developer", OpenAI's newer name for the same role.
_ROLES = {"developer": "system"}
_OPTIONAL = ("name", "tool_call_id", "reasoning", "reasoning_content", "thinking")


class ContentPart(msgspec.Struct, frozen=True):
    """One part of a message; only text is served, an earlier refusal is one too."""

    type: str = "text"
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct, frozen=True):
    """A function an earlier answer called, arguments as JSON text or as the object."""

    name: Annotated[str, Meta(max_length=MAX_FUNCTION_NAME_CHARS)]
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of an earlier answer."""

    function: FunctionCall
    id: str | None = None
    type: str = "function"


Role = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_ROLE_CHARS,
        description="system, developer (= system), user, assistant, tool, or what else the template knows.",
    ),
]


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of the conversation; parts are for templates that take them, else joined by line feeds."""

    role: Role
    content: str | list[ContentPart | str] | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    thinking: str | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    def texts(self, param: str = "message") -> list[str]:
        """Return the texts of its parts: one for plain content, none without content.

        Args:
            param: path of the message, for the errors.

        Raises:
            InvalidRequestError: a part is not text.
        """
        content = self.refusal if self.content is None else self.content
        if content is None:
            return []
        if isinstance(content, str):
            return [content]
        return [_part_text(part, f"{param}.content[{i}]") for i, part in enumerate(content)]


class Conversation(msgspec.Struct, frozen=True):
    """The messages that a script passed, as a request's body would have them."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]


def read_conversation(messages: Sequence[Message]) -> tuple[list[ChatMessage], list[UnknownField]]:
    """Check the messages of a script just as those of a request.

    Returns:
        The messages, and their unknown fields, which no template sees.

    Raises:
        InvalidRequestError: names the field, such as messages[0].role, and what it may contain.
    """
    given = {"messages": messages}
    try:
        conversation = msgspec.convert(given, Conversation)
    except msgspec.ValidationError as error:
        raise (find_fault(Conversation, given) or Fault("messages", str(error))).error("messages") from None
    return conversation.messages, unknown_fields(Conversation, given)


def template_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """Return messages in the form that templates are rendered from.

    Content is a text, a list of parts {"type": "text", "text": ...}, or None beside tool calls. Fields not
    given are left out: templates check whether a field is defined.

    Raises:
        InvalidRequestError: neither content nor a refusal where the role needs it, or a part is not text.
    """
    return [_template_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _template_message(message: ChatMessage, param: str) -> Message:
    found: dict[str, JsonValue] = {
        "role": _ROLES.get(message.role, message.role),
        "content": _content(message, param),
    }
    for name in _OPTIONAL:
        if (value := getattr(message, name)) is not None:
            found[name] = value
    if message.tool_calls:
        found["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    return found


def _content(message: ChatMessage, param: str) -> JsonValue:
    texts = message.texts(param)
    if isinstance(message.content, list):
        return [{"type": "text", "text": text} for text in texts]
    if texts:
        return texts[0]
    if message.role == "assistant" and message.tool_calls:
        return None
    raise InvalidRequestError(f"{param}.content must be a text or a list of parts", f"{param}.content")


def _part_text(part: ContentPart | str, path: str) -> str:
    if isinstance(part, str):
        return part
    field = PART_FIELDS.get(part.type)
    if field is None:
        raise InvalidRequestError(
            f'{path}.type: input other than text is not supported; it may only be "text"',
            f"{path}.type",
            "unsupported_parameter",
        )
    text: str | None = getattr(part, field)
    if text is None:
        raise InvalidRequestError(f"{path}.{field} is missing", f"{path}.{field}")
    return text


def _tool_call(call: ToolCall) -> JsonValue:
    function = {"name": call.function.name, "arguments": call.function.arguments}
    shown: dict[str, JsonValue] = {"type": call.type, "function": function}
    return shown if call.id is None else {"id": call.id, **shown}
