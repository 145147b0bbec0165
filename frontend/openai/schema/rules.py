"""What bodies must hold beside the types of their fields, as JSON schema for the OpenAPI document.

The code that handles a field is what enforces these; tests generate bodies from the document and hold the two
together. What no schema can say, because it depends on the model or on how two numbers compare, stands in
docs/api.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from splitserve.frontend.openai.schema.completions import MAX_PROMPTS
from splitserve.frontend.openai.schema.structured import FORMAT_FIELDS
from splitserve.frontend.openai.schema.vectors import MAX_INPUTS
from splitserve.frontend.text.chat.messages import PART_FIELDS

Json = dict[str, Any]


def _given(field: str, schema: Json | None = None) -> Json:
    """A field is there, not null, and as the schema says."""
    return {"required": [field], "properties": {field: schema or {"not": {"type": "null"}}}}


def _if_given(field: str, schema: Json | None = None) -> Json:
    return {"properties": {field: schema or {}}}


_TRUE: Final[Json] = {"const": True}
_FILLED: Final[Json] = {"type": "array", "minItems": 1}
_TOKEN_IDS: Final[Json] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}


def _texts_or_ids(most: int) -> Json:
    """A text, a list of token ids, or a list of up to so many of either."""
    lists: Json = {"minItems": 1, "maxItems": most}
    return {
        "anyOf": [
            {"type": "string"},
            _TOKEN_IDS,
            {"type": "array", "items": {"type": "string"}, **lists},
            {"type": "array", "items": _TOKEN_IDS, **lists},
        ]
    }


_FORMATTED: Final[Json] = _given(
    "response_format", {"type": "object", "properties": {"type": {"not": {"const": "text"}}}}
)

_GENERATION: Final[list[Json]] = [
    {"if": _given("stream_options"), "then": _given("stream", _TRUE)},
    {"not": {"allOf": [_FORMATTED, _given("structured_outputs")]}},
    {
        "if": _given("use_beam_search", _TRUE),
        "then": _if_given("stream", {"not": _TRUE}),
        "else": {
            "properties": {
                "length_penalty": {"enum": [1, None]},
                "early_stopping": {"enum": [False, None]},
            }
        },
    },
]
_ONE_WAY_TO_END: Final[Json] = {
    "if": _given("continue_final_message", _TRUE),
    "then": _if_given("add_generation_prompt", {"not": _TRUE}),
}

_OLD_TAG: Final[list[Json]] = [_given("structures"), _given("triggers")]
_ANY_JSON: Final[list[Json]] = [_given("json"), _given("json_object", _TRUE), _given("structural_tag")]

# Struct -> rules that hold between its fields.
RULES: Final[dict[str, list[Json]]] = {
    "CompletionRequest": [
        *_GENERATION,
        {"if": _given("logprob_token_ids", _FILLED), "then": _given("logprobs")},
    ],
    "ChatRequest": [
        *_GENERATION,
        {"if": _given("logprob_token_ids", _FILLED), "then": _given("logprobs", _TRUE)},
        {"if": _given("top_logprobs"), "then": _given("logprobs", _TRUE)},
        {"if": _given("tool_choice", {"const": "required"}), "then": _given("tools", _FILLED)},
        _ONE_WAY_TO_END,
    ],
    "TokenizeRequest": [
        {"oneOf": [_given("prompt"), _given("messages")]},
        {"if": _given("tools", _FILLED), "then": _given("messages")},
        _ONE_WAY_TO_END,
    ],
    "ResponseFormat": [
        *(
            {"if": _given(field), "then": {"properties": {"type": {"const": kind}}}}
            for kind, fields in FORMAT_FIELDS.items()
            for field in fields
        ),
        {"if": {"properties": {"type": {"const": "json_schema"}}}, "then": _given("json_schema")},
        {
            "if": {"properties": {"type": {"const": "structural_tag"}}},
            "then": {
                "oneOf": [
                    {"allOf": [_given("structures"), _given("triggers"), {"not": _given("format")}]},
                    {"allOf": [_given("format"), {"not": {"anyOf": _OLD_TAG}}]},
                ]
            },
        },
    ],
    "StructuredOutputFields": [
        {"oneOf": [*_ANY_JSON, *(_given(name) for name in ("regex", "choice", "grammar"))]},
        {
            "if": _given("whitespace_pattern"),
            "then": {"anyOf": _ANY_JSON, "not": _given("disable_any_whitespace", _TRUE)},
        },
    ],
    "ChatMessage": [
        {
            "anyOf": [
                _given("content"),
                _given("refusal"),
                {
                    "required": ["role", "tool_calls"],
                    "properties": {"role": {"const": "assistant"}, "tool_calls": _FILLED},
                },
            ]
        }
    ],
    "ChosenTools": [
        {"if": _given("type", {"const": kind}), "then": _given(kind)}
        for kind in ("function", "allowed_tools")
    ],
    # A part without a type is text.
    "ContentPart": [
        {
            "if": (_if_given if kind == "text" else _given)("type", {"const": kind}),
            "then": _given(field, {"type": "string"}),
        }
        for kind, field in PART_FIELDS.items()
    ],
}

# Struct and field -> its schema where the type that decodes it is wider than what is taken.
FIELDS: Final[dict[tuple[str, str], Json]] = {
    ("CompletionRequest", "prompt"): _texts_or_ids(MAX_PROMPTS),
    ("EmbeddingRequest", "input"): _texts_or_ids(MAX_INPUTS),
    ("ClassifyRequest", "input"): _texts_or_ids(MAX_INPUTS),
    ("PoolingRequest", "input"): _texts_or_ids(MAX_INPUTS),
    ("ContentPart", "type"): {"enum": list(PART_FIELDS)},
}
# Fields whose largest value the operator sets.
LOGPROBS_FIELDS: Final[tuple[str, ...]] = ("logprobs", "top_logprobs", "prompt_logprobs")


def add_rules(schemas: Json, max_logprobs: int) -> None:
    """Complete the document's schemas of request bodies.

    Args:
        schemas: by name; changed.
        max_logprobs: as the server allows.
    """
    add_tables(schemas, RULES, FIELDS)
    for name in ("CompletionRequest", "ChatRequest", "ResponsesRequest"):
        for field in LOGPROBS_FIELDS:
            if "maximum" in schemas[name]["properties"].get(field, {}):
                schemas[name]["properties"][field]["maximum"] = max_logprobs


def add_tables(
    schemas: Json, rules: Mapping[str, list[Json]], fields: Mapping[tuple[str, str], Json]
) -> None:
    """Add the rules of structs, and the schemas of fields, to the document's schemas; they are changed."""
    for name, each in rules.items():
        schemas[name]["allOf"] = each
    for (name, field), schema in fields.items():
        properties = schemas[name]["properties"]
        properties[field] = {"description": properties[field].get("description", "")} | schema
