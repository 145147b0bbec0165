"""What an output has to be: the fields response_format and structured_outputs, and what they come to."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.structured_outputs import (
    MAX_CHOICES,
    MAX_REGEX_CHARS,
    MAX_TEXT_CHARS,
    MAX_WHITESPACE_CHARS,
    StructuredOutputs,
)

MAX_DESCRIPTION_CHARS = 4096
_NAME: Final = r"^[a-zA-Z0-9_-]{1,64}$"
# The fields of a response_format that go with each type.
FORMAT_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "text": (),
    "json_object": (),
    "json_schema": ("json_schema",),
    "structural_tag": ("structures", "triggers", "format"),
}


def _text(low: int, high: int, text: str) -> Meta:
    # StructuredOutputs.validate() holds the lengths, and names them in its errors.
    return Meta(description=text, extra_json_schema={"minLength": low, "maxLength": high})


class JsonSchemaFormat(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON schema that the answer is valid for."""

    name: Annotated[
        str, Meta(description="1 to 64 letters, digits, _ and -.", extra_json_schema={"pattern": _NAME})
    ]
    schema: Annotated[dict[str, Any] | bool, Meta(description="See docs/structured-outputs.md.")]
    description: Annotated[
        Annotated[str, Meta(max_length=MAX_DESCRIPTION_CHARS)] | None,
        Meta(description="The model does not see it."),
    ] = None
    strict: Annotated[bool | None, Meta(description="Accepted; the answer is always held to the schema.")] = (
        None
    )


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer has to be, as OpenAI says it, and vLLM's structural_tag."""

    type: Annotated[
        Literal["text", "json_object", "json_schema", "structural_tag"], Meta(description="text: anything.")
    ]
    json_schema: Annotated[JsonSchemaFormat | None, Meta(description="With type json_schema.")] = None
    structures: Annotated[
        list[dict[str, Any]] | None, Meta(description="With type structural_tag: begin, schema and end.")
    ] = None
    triggers: Annotated[list[str] | None, Meta(description="With structures: what they begin with.")] = None
    format: Annotated[
        dict[str, Any] | None, Meta(description="With type structural_tag, instead of structures.")
    ] = None


class StructuredOutputFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an output has to be, as vLLM says it: exactly one of the first six."""

    json: Annotated[
        dict[str, Any] | str | bool | None, Meta(description="JSON schema, or its text; true: any JSON.")
    ] = None
    regex: Annotated[str | None, _text(1, MAX_REGEX_CHARS, "All of the output matches it.")] = None
    choice: Annotated[
        list[str] | None,
        Meta(
            description=f"Up to {MAX_CHOICES} texts, one of which the output is.",
            extra_json_schema={"minItems": 1, "maxItems": MAX_CHOICES},
        ),
    ] = None
    grammar: Annotated[str | None, _text(1, MAX_TEXT_CHARS, "In the Lark syntax of llguidance, or GBNF.")] = (
        None
    )
    json_object: Annotated[bool | None, Meta(description="true: any JSON object.")] = None
    structural_tag: Annotated[
        dict[str, Any] | str | None, Meta(description="Text in which certain tags are held to a schema.")
    ] = None
    whitespace_pattern: Annotated[
        str | None,
        _text(1, MAX_WHITESPACE_CHARS, "Regex of what may stand within JSON. Default: no whitespace."),
    ] = None
    disable_any_whitespace: Annotated[
        bool | None, Meta(description="It is so unless there is a whitespace_pattern.")
    ] = None


class OutputRule(NamedTuple):
    """What the output of a request has to be.

    Attributes:
        structured: None for anything.
        field: that says so, for errors; "" for structured_outputs, whose parts have names of their own.
    """

    structured: StructuredOutputs | None = None
    field: str = ""


def output_rule(
    response_format: ResponseFormat | None, structured_outputs: StructuredOutputFields | None
) -> OutputRule:
    """Return what the output has to be.

    Raises:
        InvalidRequestError: both say something, or the fields of a response_format do not fit its type.
    """
    rule = _format_rule(response_format) if response_format is not None else OutputRule()
    if structured_outputs is None:
        return rule
    if rule.structured is not None:
        name = "structured_outputs"
        raise InvalidRequestError(f"{name} excludes a response_format other than text", name)
    given = msgspec.structs.asdict(structured_outputs)
    named = {name: value for name, value in given.items() if value is not None}
    structured = StructuredOutputs(**named | {"choice": _tuple(structured_outputs.choice)})
    structured.validate()
    return OutputRule(structured)


def _format_rule(given: ResponseFormat) -> OutputRule:
    name = "response_format"
    _check_fields(given)
    if given.type == "json_object":
        return OutputRule(StructuredOutputs(json_object=True), name)
    if given.type == "structural_tag":
        parts = {field: getattr(given, field) for field in FORMAT_FIELDS[given.type]}
        tag = {field: part for field, part in parts.items() if part is not None}
        return OutputRule(StructuredOutputs(structural_tag=tag), name)
    if given.json_schema is None:
        return OutputRule()
    if not re.fullmatch(_NAME, given.json_schema.name, re.ASCII):
        path = f"{name}.json_schema.name"
        raise InvalidRequestError(f"{path} must be 1 to 64 letters, digits, _ or -", path)
    return OutputRule(StructuredOutputs(json=given.json_schema.schema), f"{name}.json_schema.schema")


def _check_fields(given: ResponseFormat) -> None:
    name = "response_format"
    for kind, fields in FORMAT_FIELDS.items():
        for field in fields:
            if getattr(given, field) is not None and given.type != kind:
                path = f"{name}.{field}"
                raise InvalidRequestError(f"{path} requires {name}.type {kind}", path)
    if given.type == "json_schema" and given.json_schema is None:
        path = f"{name}.json_schema"
        raise InvalidRequestError(f"{path} is required with {name}.type json_schema", path)
    if given.type == "structural_tag":
        has_old = given.structures is not None and given.triggers is not None
        has_any = given.structures is not None or given.triggers is not None
        if (given.format is not None) == has_any or has_any != has_old:
            raise InvalidRequestError(
                f"{name} of type structural_tag must have either structures and triggers or format", name
            )


def _tuple(choice: list[str] | None) -> tuple[str, ...] | None:
    return None if choice is None else tuple(choice)
