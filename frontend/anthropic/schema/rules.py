"""What bodies must hold beside the types of their fields, for the OpenAPI document.

As frontend.openai.schema.rules; frontend.anthropic.history and translation are what enforces these.
"""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]

_GIVEN: Final[Json] = {"not": {"type": "null"}}
_SERVED = {
    "user": ["text", "tool_result"],
    "assistant": ["text", "thinking", "redacted_thinking", "tool_use"],
}
_NEEDED = {
    "text": ["text"],
    "thinking": ["thinking"],
    "tool_use": ["id", "name", "input"],
    "tool_result": ["tool_use_id"],
}


def _needs(*names: str) -> Json:
    return {"required": [*names], "properties": dict.fromkeys(names, _GIVEN)}


def _is(field: str, value: str) -> Json:
    return {"properties": {field: {"const": value}}}


_ANY_NEEDS_TOOLS: Final[Json] = {
    "if": {
        "required": ["tool_choice"],
        "properties": {"tool_choice": {"type": "object"} | _is("type", "any")},
    },
    "then": {"required": ["tools"], "properties": {"tools": {"type": "array", "minItems": 1}}},
}

# Struct -> rules that hold between its fields.
RULES: Final[dict[str, list[Json]]] = {
    "TextBlockParam": [_needs("text")],
    "ContentBlockParam": [
        {"if": _is("type", kind), "then": _needs(*names)} for kind, names in _NEEDED.items()
    ],
    "MessageParam": [
        {
            "if": _is("role", role),
            "then": {"properties": {"content": {"items": {"properties": {"type": {"enum": kinds}}}}}},
        }
        for role, kinds in _SERVED.items()
    ],
    "MessagesTool": [_needs("input_schema")],
    "MessagesToolChoice": [{"if": _is("type", "tool"), "then": _needs("name")}],
    "MessagesRequest": [_ANY_NEEDS_TOOLS],
    "CountTokensRequest": [_ANY_NEEDS_TOOLS],
}
# Struct and field -> its schema where the type that decodes it is wider than what is taken.
FIELDS: Final[dict[tuple[str, str], Json]] = {
    ("TextBlockParam", "type"): {"enum": ["text"]},
    ("ContentBlockParam", "type"): {"enum": sorted({kind for kinds in _SERVED.values() for kind in kinds})},
    ("MessagesTool", "type"): {"enum": ["custom", None]},
}
