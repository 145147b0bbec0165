"""Which calls may the answers of a chat request have, and which must they? What their grammar is made of."""

from __future__ import annotations

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.openai.answers.choice_reader import AnswerReading
from splitserve.frontend.openai.schema.chat import ChatRequest
from splitserve.frontend.openai.schema.tools import FunctionTool, call_rules
from splitserve.frontend.text.call_grammar.demand import CallableTool, CallDemand


def call_demand(
    body: ChatRequest, params: SamplingParams, reading: AnswerReading | None
) -> CallDemand | None:
    """Return the calls that the outputs of a request are held to, None to leave outputs free.

    Args:
        body: the request.
        params: of the request.
        reading: how its answers are read; None if all their text is content.

    Raises:
        InvalidRequestError: no grammar can hold outputs to what tool_choice says.
    """
    rules = call_rules(body.tools or (), body.tool_choice)
    tools = None if reading is None else reading.rules.formats.tools
    if reading is None or tools is None or not rules.tools:
        return None
    has_form = params.structured_outputs is not None
    is_optional = not (
        has_form or rules.required or rules.restricted or any(function.strict for _, function in rules.tools)
    )
    if not rules.required and not has_form and tools.bare:
        # Such calls cannot be told from text before they have ended.
        if rules.restricted:
            text = "tool_choice: allowed_tools needs mode required, as no tag begins the calls of this model"
            raise InvalidRequestError(text, "tool_choice.allowed_tools.mode", "unsupported_parameter")
        return None
    if params.use_beam_search:
        if is_optional:
            return None
        text = "tool_choice: calls cannot be held to a schema with use_beam_search"
        raise InvalidRequestError(text, "tool_choice")
    return CallDemand(
        tools.name,
        tuple(_callable_tool(index, function) for index, function in rules.tools),
        required=rules.required,
        several=reading.parallel_calls and not rules.named,
        is_optional=is_optional,
        begun=reading.rules.begun,
    )


def _callable_tool(index: int, function: FunctionTool) -> CallableTool:
    return CallableTool(
        name=function.name,
        parameters=function.parameters or {},
        strict=bool(function.strict),
        path=f"tools[{index}].function.parameters",
    )
