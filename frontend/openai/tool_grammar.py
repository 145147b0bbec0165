"""Which grammar holds the outputs of a chat request to the calls of its tools?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.engine_core.sequence_sampling import MAX_GRAMMAR_CHARS
from splitserve.frontend.openai.answers.choice_reader import AnswerReading
from splitserve.frontend.openai.schema.chat import ChatRequest
from splitserve.frontend.openai.schema.tools import CallRules, FunctionTool, call_rules
from splitserve.frontend.text.call_grammar.arguments import CallableTool
from splitserve.frontend.text.call_grammar.outputs import possible_calls, required_calls
from splitserve.frontend.text.chat.control_tokens import JsonValue
from splitserve.frontend.text.tokenizer import Tokenizer

# Other schemas than these of a function say nothing of its arguments.
_NO_PARAMETERS: Final[Mapping[str, JsonValue]] = {}


def with_tool_grammar(
    params: SamplingParams, body: ChatRequest, reading: AnswerReading | None, tokenizer: Tokenizer
) -> SamplingParams:
    """Return the parameters of a request with the grammar that its tools and tool_choice call for.

    With tool_choice auto, outputs are held to a grammar only if a tool is strict or not allowed: all others
    are as fast as ever.

    Args:
        params: of the request otherwise.
        body: the request.
        reading: how its answers are read; None if all their text is content.
        tokenizer: of the model.

    Raises:
        InvalidRequestError: another field excludes the grammar, or the format cannot follow it.
    """
    rules = call_rules(body.tools or (), body.tool_choice)
    if reading is None or reading.rules.formats.tools is None or not rules.tools:
        return params
    if not (rules.required or rules.restricted or any(function.strict for _, function in rules.tools)):
        return params
    grammar = _grammar(rules, reading, tokenizer)
    if grammar is None:
        return params
    if params.use_beam_search:
        raise InvalidRequestError("tool_choice: calls cannot be demanded with use_beam_search", "tool_choice")
    if params.grammar is not None:
        text = "tool_choice: calls cannot be demanded of an output that has a format of its own"
        raise InvalidRequestError(text, "tool_choice")
    if len(grammar) > MAX_GRAMMAR_CHARS:
        text = (
            f"tools: their schemas make a grammar of {len(grammar)} characters, more than {MAX_GRAMMAR_CHARS}"
        )
        raise InvalidRequestError(text, "tools")
    return replace(params, grammar=grammar)


def _grammar(rules: CallRules, reading: AnswerReading, tokenizer: Tokenizer) -> str | None:
    tools = [_callable_tool(index, function) for index, function in rules.tools]
    several = reading.parallel_calls and not rules.named
    if rules.required:
        return required_calls(reading.rules, tokenizer, tools, several=several)
    grammar = possible_calls(reading.rules, tokenizer, tools, several=several)
    if grammar is None and rules.restricted:
        text = "tool_choice: allowed_tools needs mode required, as no tag begins the calls of this model"
        raise InvalidRequestError(text, "tool_choice.allowed_tools.mode", "unsupported_parameter")
    return grammar


def _callable_tool(index: int, function: FunctionTool) -> CallableTool:
    return CallableTool(
        name=function.name,
        parameters=function.parameters or _NO_PARAMETERS,
        strict=bool(function.strict),
        path=f"tools[{index}].function.parameters",
    )
