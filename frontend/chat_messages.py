"""Brings chat messages into the form a template expects: text or parts, marked, tool arguments as objects."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping, Sequence

from engine_core.errors import InvalidRequestError
from frontend.control_tokens import JsonValue, TextMarker

_PROBE = "Xq7 probe"
# How the list would look if the template took it for text, or wrote it as JSON.
_PRINTED_LISTS = (f"'text': '{_PROBE}'", f'"text": "{_PROBE}"')
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


class ContentFormat(enum.Enum):
    """How a template wants a message's content: as one string, as a list of parts, or as it comes."""

    TEXT = "text"
    PARTS = "parts"
    BOTH = "both"


def detect_content_format(render: Callable[[list[JsonValue]], str]) -> ContentFormat:
    """Find out by rendering both forms; a template that prints the list itself does not understand it."""
    takes_text = _PROBE in _try(render, _PROBE)
    parts = _try(render, [{"type": "text", "text": _PROBE}])
    takes_parts = _PROBE in parts and not any(form in parts for form in _PRINTED_LISTS)
    if takes_parts:
        return ContentFormat.BOTH if takes_text else ContentFormat.PARTS
    return ContentFormat.TEXT


def _try(render: Callable[[list[JsonValue]], str], content: JsonValue) -> str:
    try:
        return render([{"role": "user", "content": content}])
    except Exception:  # whatever goes wrong, this form is not for this template
        return ""


def prepare_messages(
    messages: Sequence[Mapping[str, JsonValue]],
    content_format: ContentFormat,
    marker: TextMarker,
    assistant_marker: TextMarker,
) -> list[dict[str, JsonValue]]:
    """Return copies of the messages, ready for the template.

    Args:
        messages: OpenAI's form; content is a string, a list of text parts, or missing.
        content_format: what the template understands.
        marker: marks the strings of everyone but the assistant.
        assistant_marker: marks the strings of the assistant.

    Raises:
        InvalidRequestError: names the message and the part that is not text.
    """
    if not messages:
        raise InvalidRequestError("there must be at least one message", "messages")
    prepared: list[dict[str, JsonValue]] = []
    for i, message in enumerate(messages):
        is_assistant = message.get("role") == "assistant"
        copy = (assistant_marker if is_assistant else marker).mark_all(message)
        assert isinstance(copy, dict)
        copy["content"] = _content(copy.get("content"), content_format, f"messages[{i}].content")
        _name_reasoning(copy)
        if is_assistant:
            _parse_arguments(copy)
        prepared.append(copy)
    return prepared


def _content(content: JsonValue, content_format: ContentFormat, where: str) -> JsonValue:
    if content is None or isinstance(content, str):
        text = content or ""
        return [{"type": "text", "text": text}] if content_format is ContentFormat.PARTS else text
    if not isinstance(content, list):
        raise InvalidRequestError(f"{where} must be a string or a list of parts", where)
    texts = [_part_text(part, f"{where}[{i}]") for i, part in enumerate(content)]
    if content_format is ContentFormat.TEXT:
        return "\n".join(texts)
    return [{"type": "text", "text": text} for text in texts]


def _part_text(part: JsonValue, where: str) -> str:
    """Return the text of a part: {"type": "text", "text": ...}, also "refusal", or a plain string."""
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        kind = part.get("type", "text")
        text = part.get("refusal" if kind == "refusal" else "text")
        if kind in ("text", "input_text", "output_text", "refusal") and isinstance(text, str):
            return text
        raise InvalidRequestError(
            f"{where}: parts of type {str(kind)[:50]!r} are not supported, only text", where
        )
    raise InvalidRequestError(f"{where} must be an object with type and text", where)


def _name_reasoning(message: dict[str, JsonValue]) -> None:
    """Give reasoning the names that templates look for; clients send it under any of three."""
    reasoning = next((message[name] for name in _REASONING_FIELDS if message.get(name) is not None), None)
    if reasoning is not None:
        message["reasoning_content"] = reasoning
        message.setdefault("thinking", reasoning)


def _parse_arguments(message: dict[str, JsonValue]) -> None:
    """Turn the arguments of tool calls from OpenAI's JSON text into the objects that templates want."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
            continue
        try:
            arguments = json.loads(function["arguments"])
        except (ValueError, RecursionError):
            continue
        if isinstance(arguments, dict):
            function["arguments"] = arguments
