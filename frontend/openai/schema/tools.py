"""The tools of a chat request: fields, checks, and what the template and the parser get of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.text.answers.calls import ParameterTypes
from splitserve.frontend.text.chat.control_tokens import JsonValue

MAX_TOOLS = 128
_NAME: Final = r"^[a-zA-Z0-9_-]{1,64}$"
# A function without parameters takes none; templates look for the schema.
_NO_PARAMETERS: Final[Mapping[str, JsonValue]] = {"type": "object", "properties": {}}


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call."""

    name: Annotated[
        str, Meta(description="1 to 64 letters, digits, _ and -.", extra_json_schema={"pattern": _NAME})
    ]
    description: str | None = None
    parameters: Annotated[
        dict[str, Any] | None, Meta(description="JSON schema of the arguments. Default: no arguments.")
    ] = None
    strict: Annotated[
        bool | None, Meta(description="Accepted; arguments are not constrained to the schema yet.")
    ] = None


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the model may use."""

    function: FunctionTool
    type: Literal["function"] = "function"


def check_tools(tools: Sequence[Tool]) -> None:
    """Check what their types do not say.

    Raises:
        InvalidRequestError: a name has other characters, or two tools have the same; param names it.
    """
    names: set[str] = set()
    for i, tool in enumerate(tools):
        path, name = f"tools[{i}].function.name", tool.function.name
        if not re.fullmatch(_NAME, name, re.ASCII):
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
