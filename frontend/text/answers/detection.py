"""Which formats do a model's answers have? Found from its chat templates and its tokenizer's added tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from splitserve.frontend.text.answers.formats import (
    AUTO,
    NONE,
    PLAIN_JSON,
    REASONING_FORMATS,
    TOOL_FORMATS,
    AnswerFormats,
    ReasoningFormat,
    ToolFormat,
    tool_format,
)


def find_formats(templates: Iterable[str], added_tokens: Collection[str]) -> AnswerFormats:
    """Return the formats of a checkpoint.

    A family is known by what its template writes around earlier calls or tells the model to write. A template
    that only shows tools may leave the format to the model, whose tokens then tell. Reasoning is known by the
    template alone: tokenizers have tokens for it that their models never learned to use.

    Args:
        templates: texts of the checkpoint's chat templates.
        added_tokens: texts of the tokenizer's added tokens.
    """
    text = "\n".join(templates)
    reasoning = next((each for each in REASONING_FORMATS if each.is_in(text)), None)
    if "tools" not in text:
        return AnswerFormats(reasoning)
    by_text = (each for each in TOOL_FORMATS if all(mark in text for mark in each.marks))
    by_tokens = (each for each in TOOL_FORMATS if all(mark in added_tokens for mark in each.marks))
    return AnswerFormats(reasoning, next(by_text, None) or next(by_tokens, PLAIN_JSON))


def with_overrides(found: AnswerFormats, reasoning_parser: str, tool_call_parser: str) -> AnswerFormats:
    """Return the formats that count: those found, but where the operator names others, or none.

    Args:
        found: by find_formats().
        reasoning_parser: "auto", "none" or the name of a format.
        tool_call_parser: the same.
    """
    reasoning, tools = found
    if reasoning_parser != AUTO:
        reasoning = _reasoning_format(reasoning_parser)
    if tool_call_parser != AUTO:
        tools = _tool_format(tool_call_parser)
    return AnswerFormats(reasoning, tools)


def _reasoning_format(name: str) -> ReasoningFormat | None:
    return None if name == NONE else next(each for each in REASONING_FORMATS if each.name == name)


def _tool_format(name: str) -> ToolFormat | None:
    return None if name == NONE else tool_format(name)
