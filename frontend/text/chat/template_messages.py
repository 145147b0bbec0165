"""Brings checked messages into the form that a template wants: text or parts, tool arguments, marks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.text.chat.control_tokens import JsonValue, TextMarker
from splitserve.frontend.text.chat.probes import ContentFormat, TemplateWishes

# The first that is given counts.
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


def prepare_messages(
    messages: Sequence[Mapping[str, JsonValue]],
    wishes: TemplateWishes,
    marker: TextMarker,
    assistant_marker: TextMarker,
) -> list[dict[str, JsonValue]]:
    """Return copies of the messages, ready for the template.

    Args:
        messages: as frontend.text.chat.messages gives them; content is a text, a list of text parts, or none.
        wishes: what the template wants.
        marker: marks the strings of everyone but the assistant.
        assistant_marker: marks the strings of the assistant.

    Raises:
        InvalidRequestError: there is none, or a key in one is no string.
    """
    if not messages:
        raise InvalidRequestError("there must be at least one message", "messages")
    prepared: list[dict[str, JsonValue]] = []
    for message in messages:
        is_assistant = message.get("role") == "assistant"
        calls = message.get("tool_calls") if is_assistant else None
        # Before it is marked, as JSON may spell a control token with escapes.
        shaped = _with_arguments(message, wishes) if calls else message
        copy = (assistant_marker if is_assistant else marker).mark_all(shaped)
        assert isinstance(copy, dict)
        copy["content"] = _content(copy.get("content"), wishes.format_of(copy.get("role")))
        _name_reasoning(copy)
        if calls and wishes.one_text_beside_calls:
            _join_texts(copy)
        if calls and not _has_words(copy["content"]):
            copy["content"] = wishes.empty_call_content
        prepared.append(copy)
    return prepared


def _content(content: JsonValue, content_format: ContentFormat) -> JsonValue:
    if isinstance(content, list):
        if content_format is ContentFormat.TEXT:
            return "\n".join(part["text"] for part in content)
        return content
    if content_format is ContentFormat.PARTS:
        return [{"type": "text", "text": content or ""}]
    return content or ""


def _name_reasoning(message: dict[str, JsonValue]) -> None:
    """Give reasoning all names that templates look for; clients send it under any of them."""
    reasoning = next((message[name] for name in _REASONING_FIELDS if message.get(name) is not None), None)
    if reasoning is not None:
        message.update(dict.fromkeys(_REASONING_FIELDS, reasoning))


def _join_texts(message: dict[str, JsonValue]) -> None:
    """Put content behind the reasoning of a message that may not have both, so that none is lost."""
    reasoning, content = message.get("thinking"), message["content"]
    if isinstance(reasoning, str) and reasoning and isinstance(content, str) and content:
        joined = f"{reasoning}\n\n{content}"
        message.update(dict.fromkeys(_REASONING_FIELDS, joined) | {"content": ""})


def _with_arguments(message: Mapping[str, JsonValue], wishes: TemplateWishes) -> Mapping[str, JsonValue]:
    """Return a message with tool calls whose arguments are as they are wanted."""
    calls = message["tool_calls"]
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        return message
    return {**message, "tool_calls": [_with_call_arguments(call, wishes) for call in calls]}


def _with_call_arguments(call: JsonValue, wishes: TemplateWishes) -> JsonValue:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        return call
    shape = _arguments_text if wishes.wants_argument_text else _arguments_object
    return {**call, "function": {**function, "arguments": shape(function.get("arguments"))}}


def _has_words(content: JsonValue) -> bool:
    if isinstance(content, list):
        return any(isinstance(part, dict) and part.get("text") for part in content)
    return bool(content)


def _arguments_object(arguments: JsonValue) -> JsonValue:
    """Read OpenAI's JSON text; what is none stays text."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _arguments_text(arguments: JsonValue) -> str:
    if isinstance(arguments, str):
        return arguments
    return json.dumps({} if arguments is None else arguments, ensure_ascii=False)
