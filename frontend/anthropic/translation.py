"""A request of the Messages API → the request of a chat, and the words of its errors back."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.anthropic.history import chat_messages
from splitserve.frontend.anthropic.schema.request import (
    MessagesRequest,
    MessagesTool,
    MessagesToolChoice,
    OutputConfig,
    PromptFields,
    Thinking,
)
from splitserve.frontend.openai.other_names import errors_named
from splitserve.frontend.openai.schema.chat import ChatRequest
from splitserve.frontend.openai.schema.structured import JsonSchemaFormat, ResponseFormat
from splitserve.frontend.openai.schema.tools import FunctionTool, Tool
from splitserve.frontend.openai.schema.unsupported import REFUSED_CHAT, refuse_unsupported
from splitserve.frontend.text.chat.messages import ChatMessage
from splitserve.frontend.text.chat.thinking import thinking_variables

# Field of a chat -> its name here.
NAMES: Final = (
    (re.compile(r"^stop\b"), "stop_sequences"),
    (re.compile(r"^response_format(\.json_schema)?\b"), "output_config.format"),
    (re.compile(r"^reasoning_effort\b"), "output_config.effort"),
    (re.compile(r"^thinking_token_budget\b"), "thinking.budget_tokens"),
    (re.compile(r"^(tools\[\d+\])\.function\.parameters\b"), r"\1.input_schema"),
    (re.compile(r"^(tools\[\d+\])\.function\b"), r"\1"),
    (re.compile(r"^tool_choice\.function\b"), "tool_choice"),
)


def chat_request(body: MessagesRequest) -> ChatRequest:
    """Return the chat that a request asks for.

    Raises:
        InvalidRequestError: it asks for what is not served.
    """
    return msgspec.structs.replace(
        prompt_request(body),
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=list(body.stop_sequences) if body.stop_sequences else None,
        stream=body.stream,
        response_format=None if body.output_config is None else _chat_format(body.output_config),
        thinking_token_budget=_budget(body.thinking),
    )


def prompt_request(body: PromptFields) -> ChatRequest:
    """Return a chat with the same prompt.

    Raises:
        InvalidRequestError: the prompt holds what is not served.
    """
    messages = chat_messages(body.system, body.messages)
    continues = body.messages[-1].role == "assistant"
    if continues:
        _check_last(messages[-1], len(body.messages) - 1)
    thinking, choice, config = body.thinking, body.tool_choice, body.output_config
    return ChatRequest(
        model=body.model,
        messages=messages,
        continue_final_message=continues or None,
        tools=[_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools)] if body.tools else None,
        tool_choice=None if choice is None else _chat_choice(choice),
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        chat_template_kwargs=None if thinking is None else {**thinking_variables(thinks=_thinks(thinking))},
        reasoning_effort=None if config is None else config.effort,
        include_reasoning=None if thinking is None or _is_shown(thinking) else False,
    )


def _check_last(message: ChatMessage, index: int) -> None:
    if message.tool_calls:
        path = f"messages[{index}].content"
        raise InvalidRequestError(f"{path}: a tool_use needs a tool_result in the next message", path)


def _tool(tool: MessagesTool, path: str) -> Tool:
    if tool.type not in (None, "custom"):
        raise InvalidRequestError(
            f"{path}.type: {tool.type[:64]!r} is a tool of Anthropic's own, which is not supported; "
            'it may only be "custom"',
            f"{path}.type",
            "unsupported_parameter",
        )
    if tool.input_schema is None:
        name = f"{path}.input_schema"
        raise InvalidRequestError(f"{name} is missing", name, "missing_required_parameter")
    function = FunctionTool(
        name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
    )
    return Tool(function=function)


def _chat_choice(choice: MessagesToolChoice) -> Any:
    """Return the choice as the type of a chat's field has it."""
    asked: str | dict[str, object]
    match choice.type:
        case "any":
            asked = "required"
        case "tool":
            if choice.name is None:
                raise InvalidRequestError(
                    "tool_choice.name is missing", "tool_choice.name", "missing_required_parameter"
                )
            asked = {"type": "function", "function": {"name": choice.name}}
        case other:
            asked = other
    fields = {"tool_choice": asked}
    refuse_unsupported(fields, REFUSED_CHAT)
    return msgspec.convert(fields | {"messages": [{"role": "user"}]}, ChatRequest).tool_choice


def _chat_format(config: OutputConfig) -> ResponseFormat | None:
    if config.format is None:
        return None
    # The name is for the model at OpenAI; here no model sees it.
    return ResponseFormat(
        type="json_schema", json_schema=JsonSchemaFormat(name="output", schema=config.format.schema)
    )


def _budget(thinking: Thinking | None) -> int | None:
    return thinking.budget_tokens if thinking is not None and thinking.type == "enabled" else None


def _thinks(thinking: Thinking) -> bool:
    return thinking.type != "disabled"


def _is_shown(thinking: Thinking) -> bool:
    return _thinks(thinking) and thinking.display != "omitted"


def own_words() -> AbstractContextManager[None]:
    """Name the fields of a chat that errors speak of as the Messages API does."""
    return errors_named(NAMES)
