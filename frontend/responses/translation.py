"""A request of the Responses API → the request of a chat, and the words of its errors back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.openai.other_names import errors_named
from splitserve.frontend.openai.schema.chat import ChatRequest
from splitserve.frontend.openai.schema.fields import SharedFields
from splitserve.frontend.openai.schema.tools import FunctionTool, Tool
from splitserve.frontend.openai.schema.unsupported import REFUSED_CHAT, refuse_unsupported
from splitserve.frontend.responses.compaction.summary_seal import SummarySeal
from splitserve.frontend.responses.history import chat_messages
from splitserve.frontend.responses.schema.items import (
    InputItem,
    ResponsesTool,
    ResponsesToolChoice,
    TextFormat,
)
from splitserve.frontend.responses.schema.request import LOGPROBS, ResponsesRequest

# Field of a chat -> its name here.
NAMES: Final = (
    (re.compile(r"^messages\b.*"), "input"),
    (re.compile(r"^max(_completion)?_tokens\b"), "max_output_tokens"),
    (re.compile(r"^(tools\[\d+\])\.function\b"), r"\1"),
    (re.compile(r"^tool_choice\.function\b"), "tool_choice"),
    (re.compile(r"^tool_choice\.allowed_tools\b(\.tools\[\d+\])?(\.function)?"), r"tool_choice\1"),
    (re.compile(r"^response_format(\.json_schema)?\b"), "text.format"),
    (re.compile(r"^reasoning_effort\b"), "reasoning.effort"),
)


def own_words() -> AbstractContextManager[None]:
    """Name the fields of a chat that errors speak of as the Responses API does."""
    return errors_named(NAMES)


def chat_request(body: ResponsesRequest, seal: SummarySeal, earlier: Sequence[InputItem] = ()) -> ChatRequest:
    """Return the chat that a request asks for; whether it is streamed is the caller's.

    Args:
        body: of the request.
        seal: of summaries in it.
        earlier: items that precede its input.

    Raises:
        InvalidRequestError: it asks for what is not served, or for what does not fit together.
    """
    _check(body)
    shared = {name: getattr(body, name) for name in SharedFields.__struct_fields__}
    shows_logprobs = LOGPROBS in (body.include or ())
    return msgspec.structs.replace(
        _with_asked(body),
        **shared,
        model=body.model,
        messages=chat_messages(body.instructions, body.input, seal, earlier),
        max_completion_tokens=body.max_output_tokens,
        logprobs=shows_logprobs or None,
        top_logprobs=(body.top_logprobs or 0) if shows_logprobs else None,
        tools=[_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or ())] or None,
        parallel_tool_calls=body.parallel_tool_calls,
        chat_template_kwargs=body.chat_template_kwargs,
    )


def _check(body: ResponsesRequest) -> None:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError("stream_options requires stream: true", "stream_options")
    if body.top_logprobs and LOGPROBS not in (body.include or ()):
        raise InvalidRequestError(f'top_logprobs requires include: ["{LOGPROBS}"]', "top_logprobs")


def _with_asked(body: ResponsesRequest) -> ChatRequest:
    """Return a chat with the fields that a chat may refuse, as the types of its fields have them."""
    asked: dict[str, object] = {}
    if body.tool_choice is not None:
        asked["tool_choice"] = _chat_choice(body.tool_choice)
    if body.text is not None and body.text.format is not None:
        asked["response_format"] = _chat_format(body.text.format)
    if body.reasoning is not None and body.reasoning.effort is not None:
        asked["reasoning_effort"] = body.reasoning.effort
    refuse_unsupported(asked, REFUSED_CHAT)
    known = {name: value for name, value in asked.items() if name in ChatRequest.__struct_fields__}
    try:
        return msgspec.convert(known | {"messages": [{"role": "user"}]}, ChatRequest)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        raise InvalidRequestError(message, path.rstrip("`") or None, "invalid_value") from None


def _tool(tool: ResponsesTool, path: str) -> Tool:
    if tool.type != "function":
        raise InvalidRequestError(
            f"{path}.type: {tool.type[:64]!r} is a tool that the server would have to run, which is not "
            'supported; it may only be "function"',
            f"{path}.type",
            "unsupported_parameter",
        )
    if tool.name is None:
        raise _missing(f"{path}.name")
    function = FunctionTool(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return Tool(function=function)


def _chat_choice(choice: str | ResponsesToolChoice) -> str | dict[str, object]:
    if isinstance(choice, str):
        return choice
    if choice.type == "allowed_tools":
        return {"type": "allowed_tools", "allowed_tools": _allowed_tools(choice)}
    if choice.type != "function":
        raise InvalidRequestError(
            f"tool_choice.type: {choice.type[:64]!r} is not supported; it may be function or allowed_tools",
            "tool_choice.type",
            "unsupported_parameter",
        )
    if choice.name is None:
        raise _missing("tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}


def _allowed_tools(choice: ResponsesToolChoice) -> dict[str, object]:
    if choice.mode is None:
        raise _missing("tool_choice.mode")
    if choice.tools is None:
        raise _missing("tool_choice.tools")
    for i, tool in enumerate(choice.tools):
        path = f"tool_choice.tools[{i}]"
        if tool.type != "function":
            raise InvalidRequestError(f'{path}.type may only be "function"', f"{path}.type")
        if tool.name is None:
            raise _missing(f"{path}.name")
    named = [{"type": "function", "function": {"name": tool.name}} for tool in choice.tools]
    return {"mode": choice.mode, "tools": named}


def _chat_format(asked: TextFormat) -> dict[str, Any]:
    if asked.type != "json_schema":
        return {"type": asked.type}
    named = {"name": asked.name, "schema": asked.schema}
    for name, value in named.items():
        if value is None:
            raise _missing(f"text.format.{name}")
    others = {"strict": asked.strict, "description": asked.description}
    given = {name: value for name, value in others.items() if value is not None}
    return {"type": "json_schema", "json_schema": named | given}


def _missing(path: str) -> InvalidRequestError:
    return InvalidRequestError(f"{path} is missing", path, "missing_required_parameter")
