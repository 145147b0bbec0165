"""What may be written as the arguments of a call? A rule of a grammar: JSON, tags or Python."""

from __future__ import annotations

import json
import keyword
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from splitserve.frontend.text.answers.formats import TaggedCall
from splitserve.frontend.text.call_grammar.demand import CallableTool, Schema
from splitserve.frontend.text.call_grammar.lark import Lark, one_of
from splitserve.frontend.text.grammar.refusal import RefusalError

# What a plain text cannot be held to: its letters are not those of a JSON string.
UNHELD_IN_TEXTS: Final = ("pattern", "format", "minLength", "maxLength")
# Without these a schema allows anything.
_WORDS_ABOUT: Final = frozenset(("title", "description", "default", "examples", "deprecated"))
# Where a schema keeps what its references name.
_DEFINITIONS: Final = ("$defs", "definitions")
# Beside properties, what says which arguments there may be.
_OF_OBJECTS: Final = ("anyOf", "oneOf", "allOf", "not", "$ref", "if", "patternProperties", "minProperties")
# Those of JSON that mean the same in Python.
_PYTHON_ESCAPES: Final = 'nrbtf\\"'
# Beside what JSON writes: models that learned Python write these too.
_PYTHON_LITERALS: Final = {
    "boolean": '"True" | "False"',
    "null": '"None"',
    "string": r"""/'([^'\\\x00-\x1f\x7f]|\\['"\\nrt])*'/""",
}


class Parameter(NamedTuple):
    """A parameter of a tool, with the definitions that its schema may refer to."""

    name: str
    schema: Schema
    required: bool


def json_arguments_rule(lark: Lark, index: int, tool: CallableTool) -> str:
    """Return the rule of arguments that are a JSON object.

    Raises:
        RefusalError: the schema is not that of an object.
    """
    schema = _object_schema(tool)
    return lark.rule(f"arguments_{index}", lark.json(schema, tool))


def tagged_arguments_rule(lark: Lark, index: int, tool: CallableTool, shape: TaggedCall) -> str:
    """Return the rule of arguments between tags, in the order of the schema, with the whitespace behind each.

    Raises:
        RefusalError: the schema cannot be followed in this way.
    """
    space, parts = lark.space(), list[str]()
    for number, parameter in enumerate(parameters_of(tool)):
        key = parameter.name
        if shape.key_end in key or key != key.strip() or not key:
            raise refusal(tool, f"the name {key!r} of a parameter cannot be written in this model's calls")
        value = _tagged_value(lark, f"value_{index}_{number}", tool, parameter, shape)
        tag = lark.text(f"{shape.key_begin}{key}{shape.key_end}")
        begin = f"{space} {lark.text(shape.value_begin)}" if shape.value_begin else ""
        one = lark.rule(f"argument_{index}_{number}", f"{tag} {begin} {value} {space}")
        parts.append(one if parameter.required else f"{one}?")
    return lark.rule(f"arguments_{index}", " ".join(parts) or '""')


def python_arguments_rule(lark: Lark, index: int, tool: CallableTool) -> str:
    """Return the rule of keyword arguments in Python, in the order of the schema.

    Raises:
        RefusalError: the schema cannot be followed in this way.
    """
    parameters = parameters_of(tool)
    for parameter in parameters:
        if not is_python_name(parameter.name):
            raise refusal(tool, f"the name {parameter.name!r} of a parameter is none in Python")
    written = listed_arguments(
        lark, str(index), parameters, lambda each: f'"{each.name}=" {_python_value(lark, tool, each)}'
    )
    return lark.rule(f"arguments_{index}", written)


def listed_arguments(
    lark: Lark, name: str, parameters: Sequence[Parameter], write: Callable[[Parameter], str]
) -> str:
    """Return what matches arguments with commas between them, in their order.

    Args:
        lark: gets the rules.
        name: tells them from others.
        parameters: some of which may be left out.
        write: returns what matches one argument.
    """
    # Behind the first argument each has a comma before it, so which is the first is decided by the rule.
    options, later = list[str](), ""
    for number, parameter in enumerate(parameters):
        lark.rule(f"argument_{name}_{number}", write(parameter))
    for number, parameter in reversed(list(enumerate(parameters))):
        argument = f"argument_{name}_{number}"
        options = [f"{argument} {later}", *([] if parameter.required else options)]
        with_comma = f"(COMMA {argument}){'' if parameter.required else '?'} {later}"
        later = lark.rule(f"later_{name}_{number}", with_comma)
    lark.rule("COMMA", "/, ?/")
    may_be_empty = not any(parameter.required for parameter in parameters)
    found = " | ".join([*options, *(['""'] if may_be_empty else [])])
    return lark.rule(f"listed_{name}", found)


def is_python_name(name: str) -> bool:
    """Tell whether Python takes a word for a name."""
    return name.isidentifier() and name.isascii() and not keyword.iskeyword(name)


def _tagged_value(lark: Lark, name: str, tool: CallableTool, parameter: Parameter, shape: TaggedCall) -> str:
    schema, end = parameter.schema, lark.text(shape.value_end)
    path = f"properties.{parameter.name}"
    feed = f"{lark.rule('FEED', _quoted(chr(10)))}?"
    types = types_of(schema)
    if "string" not in types and not is_any(schema):
        value = lark.rule(name, lark.json(schema, tool, path))
        return f"{feed} {value} {feed} {end}"
    if (texts := only_texts(schema)) is not None:
        return f"{feed} {one_of(map(lark.text, texts))} {feed} {end}"
    unheld = [word for word in UNHELD_IN_TEXTS if word in schema]
    if unheld and tool.strict:
        raise refusal(
            tool, f"{parameter.name!r}: strict cannot hold a string to {unheld[0]} in this model's calls"
        )
    return lark.text_before("text_value", shape.value_end)


def _python_value(lark: Lark, tool: CallableTool, parameter: Parameter) -> str:
    written = lark.json(parameter.schema, tool, f"properties.{parameter.name}", escapes=_PYTHON_ESCAPES)
    if {"enum", "const"} & set(parameter.schema):
        literals = [_quoted(repr(text)) for text in only_texts(parameter.schema) or () if text != "null"]
    elif set(UNHELD_IN_TEXTS) & set(parameter.schema):
        literals = []
    else:
        literals = [_PYTHON_LITERALS[each] for each in types_of(parameter.schema) if each in _PYTHON_LITERALS]
    return f"({' | '.join([*literals, written])})"


def only_texts(schema: Schema) -> list[str] | None:
    """Return the only texts that a value may be; None if the schema does not list them."""
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        return None
    texts = [each for each in listed if isinstance(each, str) and each]
    return texts + (["null"] if None in listed and "null" in types_of(schema) else []) or None


def types_of(schema: Schema) -> tuple[str, ...]:
    """Return the types that a schema names; () for none."""
    named = schema.get("type")
    if isinstance(named, str):
        return (named,)
    return tuple(each for each in named if isinstance(each, str)) if isinstance(named, Sequence) else ()


def is_any(schema: Schema) -> bool:
    """Tell whether a schema allows anything."""
    return not set(schema) - _WORDS_ABOUT - set(_DEFINITIONS)


def parameters_of(tool: CallableTool) -> list[Parameter]:
    """Return the parameters that a schema lists; those that it only allows cannot be written.

    Raises:
        RefusalError: the schema is not that of an object, or has more to say although it is strict.
    """
    schema = _object_schema(tool)
    beside = [word for word in _OF_OBJECTS if word in schema]
    if beside and tool.strict:
        raise refusal(tool, f"strict cannot hold arguments to {beside[0]} in this model's calls")
    properties, listed = schema.get("properties"), schema.get("required")
    found = dict(properties) if isinstance(properties, Mapping) else {}
    required = [each for each in listed if isinstance(each, str)] if isinstance(listed, Sequence) else []
    definitions = {name: schema[name] for name in _DEFINITIONS if name in schema}
    named = {**found, **{name: {} for name in required if name not in found}}
    return [
        Parameter(name, {**definitions, **each} if isinstance(each, Mapping) else {}, name in required)
        for name, each in named.items()
    ]


def _object_schema(tool: CallableTool) -> Schema:
    types = types_of(tool.parameters)
    if types and "object" not in types:
        raise refusal(tool, f"the schema of arguments is that of an object, not of {types[0]!r}")
    if not tool.parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {**tool.parameters, "type": "object"}


def _quoted(text: str) -> str:
    return json.dumps(text)


def refusal(tool: CallableTool, words: str) -> RefusalError:
    """Return the error of a tool's schema."""
    return RefusalError(words, field=tool.path)
