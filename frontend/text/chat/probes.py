"""What does a chat template expect of its messages? Found by rendering short ones, as families differ."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.text.chat.control_tokens import JsonValue
from splitserve.frontend.text.chat.template_process import TemplateTimeoutError

Render = Callable[[list[JsonValue]], str]

# A template that knows tools shows this name, of the one that is available while it is probed.
PROBE_TOOL_NAME = "xq7_tool"
_PROBE, _SECOND_PROBE = "Xq7 probe", "Xq8 probe"
# How the list would look if the template treated it as text or wrote it as JSON.
_PRINTED_LISTS = (f"'text': '{_PROBE}'", f'"text": "{_PROBE}"')
_FUNCTION, _ARGUMENT, _VALUE = "xq7_function", "xq7_argument", "xq7_value"
# Mistral's templates require ids of nine letters and digits.
_CALL_ID = "Xq7probe1"
_ARGUMENTS: JsonValue = {_ARGUMENT: _VALUE}
_ARGUMENTS_TEXT: JsonValue = f'{{"{_ARGUMENT}": "{_VALUE}"}}'
_USER: dict[str, JsonValue] = {"role": "user", "content": "Hello"}


class ContentFormat(enum.Enum):
    """How a template expects a message's content: as one string, as a list of parts, or unchanged."""

    TEXT = "text"
    PARTS = "parts"
    BOTH = "both"


@dataclass(slots=True, frozen=True)
class TemplateWishes:
    """What a template expects of its messages.

    Attributes:
        formats: format of the content, by role.
        empty_call_content: content of a message that has only tool calls.
        wants_argument_text: whether arguments of tool calls must be JSON text, not objects.
        shows_tools: whether it tells the model which tools there are.
        one_text_beside_calls: whether it refuses tool calls beside both content and reasoning.
    """

    formats: Mapping[str, ContentFormat] = field(default_factory=lambda: MappingProxyType({}))
    empty_call_content: JsonValue = ""
    wants_argument_text: bool = False
    shows_tools: bool = True
    one_text_beside_calls: bool = False

    def format_of(self, role: JsonValue) -> ContentFormat:
        """Return the format for a role; roles that were not probed use the user's."""
        default = self.formats.get("user", ContentFormat.TEXT)
        return self.formats.get(role, default) if isinstance(role, str) else default


def find_wishes(render: Render) -> TemplateWishes:
    """Find out what a template expects; one that is too slow to probe gets plain text.

    Args:
        render: renders messages with one tool available; raises InvalidRequestError.
    """
    try:
        return _ask(render)
    except TemplateTimeoutError:
        return TemplateWishes()


def _ask(render: Render) -> TemplateWishes:
    formats = {
        "user": _format(render, "user", [], []),
        "system": _format(render, "system", [], [_USER]),
        "assistant": _format(render, "assistant", [_USER], [_USER]),
    }
    empty: JsonValue = [] if formats["assistant"] is ContentFormat.PARTS else ""
    content, wants_text = _call_form(render, empty)
    call = _call(content, _ARGUMENTS_TEXT if wants_text else _ARGUMENTS)
    formats["tool"] = _format(render, "tool", [_USER, call], [])
    known = {role: content_format for role, content_format in formats.items() if content_format is not None}
    takes_one = _takes_one_text(render, call)
    return TemplateWishes(known, content, wants_text, _shows_tools(render), takes_one)


def _shows_tools(render: Render) -> bool:
    system: JsonValue = {"role": "system", "content": "Help."}
    conversations: tuple[list[JsonValue], ...] = ([_USER], [system, _USER])
    return any(PROBE_TOOL_NAME in _try(render, messages) for messages in conversations)


def _takes_one_text(render: Render, call: Mapping[str, JsonValue]) -> bool:
    """Whether a message with a call may have reasoning, and content, but not both."""
    reasons = {**call, "thinking": _SECOND_PROBE, "reasoning_content": _SECOND_PROBE}
    says = {**call, "content": _PROBE}
    both = bool(_try(render, [_USER, {**reasons, "content": _PROBE}]))
    return not both and bool(_try(render, [_USER, reasons])) and bool(_try(render, [_USER, says]))


def _format(
    render: Render, role: str, before: list[JsonValue], after: list[JsonValue]
) -> ContentFormat | None:
    """Try both forms, None if neither works; a template that prints the list does not understand it."""

    def shown(content: JsonValue) -> str:
        message = {"role": role, "content": content, "tool_call_id": _CALL_ID, "name": _FUNCTION}
        return _try(render, [*before, message, *after])

    takes_text = _PROBE in shown(_PROBE)
    # Two parts, because some templates show only the first.
    parts = shown([{"type": "text", "text": _PROBE}, {"type": "text", "text": _SECOND_PROBE}])
    is_printed = any(form in parts for form in _PRINTED_LISTS)
    takes_parts = _PROBE in parts and _SECOND_PROBE in parts and not is_printed
    if takes_parts:
        return ContentFormat.BOTH if takes_text else ContentFormat.PARTS
    return ContentFormat.TEXT if takes_text else None


def _call_form(render: Render, empty: JsonValue) -> tuple[JsonValue, bool]:
    """Find out how a message with only a tool call must look for the call to appear in the prompt.

    Args:
        render: as for find_wishes().
        empty: the empty content, if null is not accepted.

    Returns:
        The message's content, and whether the arguments must be text.
    """
    for arguments, content in itertools.product((_ARGUMENTS, _ARGUMENTS_TEXT), (None, empty)):
        text = _try(render, [_USER, _call(content, arguments)])
        if not _shows_call(text):
            continue
        other = _try(render, [_USER, _call(empty, arguments)])
        # It prints "None" for empty content: this template does not expect null.
        if content is None and _shows_call(other) and _num_nothings(text) > _num_nothings(other):
            content = empty
        return content, arguments is _ARGUMENTS_TEXT
    return empty, False


def _call(content: JsonValue, arguments: JsonValue) -> dict[str, JsonValue]:
    function: JsonValue = {"name": _FUNCTION, "arguments": arguments}
    call: JsonValue = {"id": _CALL_ID, "type": "function", "function": function}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def _shows_call(text: str) -> bool:
    """Whether the arguments appear properly: not as a printed Python dict or as JSON in a JSON string."""
    is_there = _FUNCTION in text and _ARGUMENT in text and _VALUE in text
    return is_there and f"'{_ARGUMENT}'" not in text and f'\\"{_ARGUMENT}' not in text


def _num_nothings(text: str) -> int:
    return text.count("None") + text.count("null")


def _try(render: Render, messages: list[JsonValue]) -> str:
    try:
        return render(messages)
    except TemplateTimeoutError:
        raise
    except InvalidRequestError:  # the template does not accept this form
        return ""
