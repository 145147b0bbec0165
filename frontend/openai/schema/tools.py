"""The tools of a chat request: fields, checks, and what the template and the parser get of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.text.answers.calls import ParameterTypes
from splitserve.frontend.text.chat.control_tokens import JsonValue

MAX_TOOLS = 128
NAME_PATTERN: Final = r"^[a-zA-Z0-9_-]{1,64}$"
# A function without parameters takes none; templates look for the schema.
_NO_PARAMETERS: Final[Mapping[str, JsonValue]] = {"type": "object", "properties": {}}


T = TypeVar("T")


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call."""

    name: Annotated[
        str,
        Meta(description="1 to 64 letters, digits, _ and -.", extra_json_schema={"pattern": NAME_PATTERN}),
    ]
    description: str | None = None
    parameters: Annotated[
        dict[str, Any] | None, Meta(description="JSON schema of the arguments. Default: no arguments.")
    ] = None
    strict: Annotated[
        bool | None,
        Meta(description="Hold arguments to all of the schema, also with tool_choice auto. Default false."),
    ] = None


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the model may use."""

    function: FunctionTool
    type: Literal["function"] = "function"


class FunctionName(msgspec.Struct, frozen=True):
    """A function by its name."""

    name: str


class ToolName(msgspec.Struct, frozen=True):
    """A tool by its name."""

    function: FunctionName
    type: Literal["function"] = "function"


class AllowedTools(msgspec.Struct, frozen=True):
    """The only tools that may be called, of those that the model sees."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolName], Meta(min_length=1, max_length=MAX_TOOLS)]


class ChosenTools(msgspec.Struct, frozen=True, kw_only=True):
    """The one function that is to be called, or some of the tools; the type says which of the two counts."""

    type: Literal["function", "allowed_tools"]
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None


ToolChoice = Literal["none", "auto", "required"] | ChosenTools


class CallRules(NamedTuple):
    """Which calls an answer may have.

    Attributes:
        tools: those that may be called, with their places in the request.
        required: there must be a call.
        named: the request names the one function to call.
        restricted: the model sees tools that may not be called.
    """

    tools: Sequence[tuple[int, FunctionTool]]
    required: bool = False
    named: bool = False
    restricted: bool = False


def call_rules(tools: Sequence[Tool], choice: ToolChoice | None) -> CallRules:
    """Return what a request's tool_choice says.

    Raises:
        InvalidRequestError: it asks for a call without a tool, names none, or one that the request lacks.
    """
    offered = [(i, tool.function) for i, tool in enumerate(tools)]
    if choice == "none":
        return CallRules(())
    if choice is None or choice == "auto":
        return CallRules(offered)
    if choice == "required":
        if not offered:
            raise InvalidRequestError(
                "tool_choice: a call is demanded, but there are no tools", "tool_choice"
            )
        return CallRules(offered, required=True)
    if choice.type == "function":
        function, path = _given(choice.function, "tool_choice.function"), "tool_choice.function.name"
        return CallRules(_named(offered, {function.name: path}), required=True, named=True)
    allowed = _given(choice.allowed_tools, "tool_choice.allowed_tools")
    paths = {
        tool.function.name: f"tool_choice.allowed_tools.tools[{i}].function.name"
        for i, tool in enumerate(allowed.tools)
    }
    return CallRules(_named(offered, paths), required=allowed.mode == "required", restricted=True)


def _given(value: T | None, path: str) -> T:
    if value is None:
        raise InvalidRequestError(f"{path} is missing", path, "missing_required_parameter")
    return value


def _named(
    offered: Sequence[tuple[int, FunctionTool]], paths: Mapping[str, str]
) -> Sequence[tuple[int, FunctionTool]]:
    """Return the tools with some names, which come with their paths in the request."""
    names = {function.name for _, function in offered}
    for name, path in paths.items():
        if name not in names:
            raise InvalidRequestError(f"{path}: {name!r} is none of the tools of the request", path)
    return [(i, function) for i, function in offered if function.name in paths]


def check_tools(tools: Sequence[Tool]) -> None:
    """Check what their types do not say.

    Raises:
        InvalidRequestError: a name has other characters, or two tools have the same; param names it.
    """
    names: set[str] = set()
    for i, tool in enumerate(tools):
        path, name = f"tools[{i}].function.name", tool.function.name
        if not re.fullmatch(NAME_PATTERN, name, re.ASCII):
            raise InvalidRequestError(f"{path} must be 1 to 64 letters, digits, _ or -", path)
        if name in names:
            raise InvalidRequestError(f"{path}: two tools have the name {name!r}", path)
        names.add(name)


def template_tools(tools: Sequence[Tool]) -> list[Mapping[str, JsonValue]]:
    """Return tools in the form that templates are rendered from."""
    return [{"type": tool.type, "function": _template_function(tool.function)} for tool in tools]


def _template_function(function: FunctionTool) -> Mapping[str, JsonValue]:
    described = {} if function.description is None else {"description": function.description}
    return {"name": function.name, **described, "parameters": function.parameters or _NO_PARAMETERS}


def parameter_types(tools: Sequence[Tool]) -> dict[str, ParameterTypes]:
    """Return the types of the parameters of each tool, as far as their schemas name any."""
    return {tool.function.name: _types(tool.function.parameters or {}) for tool in tools}


def _types(schema: Mapping[str, Any]) -> ParameterTypes:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {name: _named_types(each) for name, each in properties.items()}


def _named_types(schema: object) -> tuple[str, ...]:
    named = schema.get("type") if isinstance(schema, Mapping) else None
    if isinstance(named, str):
        return (named,)
    return tuple(each for each in named if isinstance(each, str)) if isinstance(named, list) else ()
