"""What bodies must hold beside the types of their fields, for the OpenAPI document.

As frontend.openai.schema.rules; frontend.responses.history and translation are what enforces these.
"""

from __future__ import annotations

from typing import Any, Final

from splitserve.frontend.responses.schema.items import NEEDED_FIELDS, PART_FIELDS, REASONING_PARTS
from splitserve.frontend.responses.schema.request import LOGPROBS
from splitserve.frontend.text.chat.thinking import EFFORTS

Json = dict[str, Any]

_GIVEN: Final[Json] = {"not": {"type": "null"}}


def _needs(*names: str) -> Json:
    return {"required": [*names], "properties": dict.fromkeys(names, _GIVEN)}


def _is(kind: str) -> Json:
    return {"required": ["type"], "properties": {"type": {"const": kind}}}


def _parts(field: str, kinds: list[str]) -> Json:
    return {"properties": {field: {"items": {"properties": {"type": {"enum": kinds}}}}}}


_MESSAGE: Final[Json] = {"properties": {"type": {"enum": ["message", None]}}}
_REASONING: Final[Json] = _is("reasoning")

# Struct -> rules that hold between its fields.
RULES: Final[dict[str, list[Json]]] = {
    "ResponsesRequest": [
        {
            "if": _needs("stream_options"),
            "then": {"required": ["stream"], "properties": {"stream": {"const": True}}},
        },
        {
            "if": {"required": ["background"], "properties": {"background": {"const": True}}},
            "then": {"properties": {"store": {"not": {"const": False}}}},
        },
        {
            "if": {"required": ["top_logprobs"], "properties": {"top_logprobs": {"minimum": 1} | _GIVEN}},
            "then": {
                "required": ["include"],
                "properties": {"include": {"type": "array", "contains": {"const": LOGPROBS}}},
            },
        },
        {
            "if": {"required": ["tool_choice"], "properties": {"tool_choice": {"const": "required"}}},
            "then": {"required": ["tools"], "properties": {"tools": {"type": "array", "minItems": 1}}},
        },
    ],
    "CompactionRequest": [{"anyOf": [_needs("input"), _needs("previous_response_id")]}],
    "InputPart": [
        {"if": _is(kind), "then": {"required": [field], "properties": {field: {"type": "string"}}}}
        for kind, field in PART_FIELDS.items()
    ],
    "InputItem": [
        *(
            {"if": _MESSAGE if kind == "message" else _is(kind), "then": _needs(*names)}
            for kind, names in NEEDED_FIELDS.items()
            if names
        ),
        {"if": _REASONING, "then": _parts("content", list(REASONING_PARTS))},
        {"if": _MESSAGE, "then": _parts("content", list(PART_FIELDS))},
        {"if": _is("function_call_output"), "then": _parts("output", list(PART_FIELDS))},
    ],
    "ResponsesTool": [_needs("name")],
    "ResponsesToolChoice": [
        {"if": _is("function"), "then": _needs("name")},
        {"if": _is("allowed_tools"), "then": _needs("mode", "tools")},
    ],
    "AllowedTool": [_needs("name")],
    "TextFormat": [{"if": _is("json_schema"), "then": _needs("name", "schema")}],
}
# Struct and field -> its schema where the type that decodes it is wider than what is taken.
FIELDS: Final[dict[tuple[str, str], Json]] = {
    ("InputPart", "type"): {"enum": sorted({*PART_FIELDS, *REASONING_PARTS})},
    ("InputItem", "type"): {"enum": [*NEEDED_FIELDS, None]},
    ("ResponsesTool", "type"): {"enum": ["function"]},
    ("AllowedTool", "type"): {"enum": ["function"]},
    ("ResponsesToolChoice", "type"): {"enum": ["function", "allowed_tools"]},
    ("ReasoningOptions", "effort"): {"enum": [*EFFORTS, None]},
}
