"""Which parts of a chat answer may be reasoning or tool calls? Decided before the request runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.openai.answers.choice_reader import AnswerReading
from splitserve.frontend.openai.schema.chat import ChatRequest
from splitserve.frontend.openai.schema.tools import (
    Tool,
    call_rules,
    check_tools,
    parameter_types,
    template_tools,
)
from splitserve.frontend.text.answers.formats import AnswerFormats
from splitserve.frontend.text.answers.parser import AnswerRules
from splitserve.frontend.text.answers.prompt_end import NUM_TOKENS, Beginning, beginning_of
from splitserve.frontend.text.chat.control_tokens import JsonValue
from splitserve.frontend.text.prompts import Prompt
from splitserve.frontend.text.tokenizer import Tokenizer


def offered_tools(body: ChatRequest) -> Sequence[Tool]:
    """Return the tools that the model may call: none with tool_choice "none", so that it cannot."""
    return () if body.tool_choice == "none" else body.tools or ()


def shown_tools(body: ChatRequest, formats: AnswerFormats) -> list[Mapping[str, JsonValue]] | None:
    """Return what the template shows of the tools, None for none.

    Raises:
        InvalidRequestError: names the field of a tool, or the model has no tool calls.
    """
    check_tools(body.tools or ())
    tools = offered_tools(body)
    if tools and formats.tools is None:
        raise InvalidRequestError(
            "tools: this model, as it is served here, makes no tool calls", "tools", "unsupported_parameter"
        )
    return template_tools(tools) if tools else None


def answer_reading(
    body: ChatRequest, formats: AnswerFormats, tokenizer: Tokenizer, prompt: Prompt
) -> AnswerReading | None:
    """Return how the answers are read; None if all their text is content."""
    tools = offered_tools(body)
    reasoning, in_reasoning, in_content = formats.reasoning, False, False
    if reasoning is not None:
        end = tokenizer.decode(prompt.token_ids[-NUM_TOKENS:], skip_special_tokens=False)
        continued = "\n".join(body.messages[-1].texts()) if body.continue_final_message else ""
        beginning = beginning_of(reasoning, end, continued)
        in_reasoning = beginning is Beginning.WITHIN
        is_behind = beginning is Beginning.BEHIND
        in_content = is_behind and reasoning.channels is not None
        reasoning = None if is_behind and not in_content else reasoning
    used = AnswerFormats(reasoning, formats.tools if tools else None)
    if used == AnswerFormats():
        return None
    rules = AnswerRules(used, parameter_types(tools), in_reasoning, in_content)
    special = tokenizer.special_tokens
    return AnswerReading(
        rules,
        kept_ids=frozenset(special[tag] for tag in rules.tags if tag in special),
        shows_reasoning=body.include_reasoning is not False,
        parallel_calls=body.parallel_tool_calls is not False,
        # As OpenAI has it: a call that the request demanded by name is no news.
        call_reason="stop" if call_rules(tools, body.tool_choice).named else "tool_calls",
    )
