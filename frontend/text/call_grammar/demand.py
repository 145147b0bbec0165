"""Which calls may an output have, and which must it? What the frontend asks and grammars are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

Schema = Mapping[str, Any]


class CallableTool(Struct, frozen=True):
    """A tool that may be called.

    Attributes:
        name: of the function.
        parameters: JSON schema of an object.
        strict: the arguments must fit all of it; otherwise what cannot be held to is passed over.
        path: of its schema in the request.
    """

    name: str
    parameters: Schema
    strict: bool = False
    path: str = "tools"


class CallDemand(Struct, frozen=True):
    """The calls of one output.

    Attributes:
        tool_format: name of the ToolFormat in which they are written.
        tools: at least one; no others may be called.
        required: there must be a call; otherwise there may be one.
        several: there may be more than one.
        is_optional: an output that cannot be held to this may be free.
        begun: channel of the message that the prompt has begun, if the format has channels; "" for none.
    """

    tool_format: str
    tools: tuple[CallableTool, ...]
    required: bool = False
    several: bool = True
    is_optional: bool = False
    begun: str = ""
