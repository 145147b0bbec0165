"""POST /v1/chat/completions: fields checked, template rendered, run, answered whole or as a stream."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.http.json_body import BodyDecoder
from splitserve.frontend.http.response.json_pieces import JsonPieces
from splitserve.frontend.http.response.sse import EventStream
from splitserve.frontend.observability.request_trace import tokenizing
from splitserve.frontend.openai.answers.answer_size import AnswerShape, check_answer_size, shown_per_token
from splitserve.frontend.openai.answers.call_demand import call_demand
from splitserve.frontend.openai.answers.chat_answer import ChatAnswer
from splitserve.frontend.openai.answers.chat_chunks import ChatWriter
from splitserve.frontend.openai.answers.chat_echo import answer_role, echoed_text
from splitserve.frontend.openai.answers.choice_reader import ChoiceReaders
from splitserve.frontend.openai.answers.reading import answer_reading, shown_tools
from splitserve.frontend.openai.context import ApiContext, json_answer, make_head, read_struct
from splitserve.frontend.openai.generation_run import GenerationRun
from splitserve.frontend.openai.models import find_model, find_model_in_time
from splitserve.frontend.openai.plan import Plan
from splitserve.frontend.openai.prompts import chat_options
from splitserve.frontend.openai.run_events import RunEvents
from splitserve.frontend.openai.schema.chat import AnswerMessage, ChatRequest
from splitserve.frontend.openai.schema.sampling import (
    check_stream_fields,
    fit_max_tokens,
    make_sampling_params,
)
from splitserve.frontend.openai.schema.server_defaults import with_server_defaults
from splitserve.frontend.openai.schema.tools import call_rules
from splitserve.frontend.openai.schema.unsupported import REFUSED_CHAT, known_beside
from splitserve.frontend.text.chat.messages import template_messages
from splitserve.frontend.text.chat.options import ChatOptions
from splitserve.frontend.text.chat.thinking import effort_variables
from splitserve.frontend.text.grammar.thinking_budget import budget_of
from splitserve.frontend.text.prompts import Prompt, PromptEncoder
from splitserve.frontend.text.truncation import read_truncation

# Of a prediction no more is encoded, whose end could not be in an answer; few tokens are longer.
_MAX_CHARS_PER_TOKEN = 16

decoder = BodyDecoder(ChatRequest, known_beside(REFUSED_CHAT))


async def create_chat_completion(context: ApiContext, request: Request) -> Response:
    """Answer one request.

    Raises:
        SplitServeError: before the answer has begun; app.py makes the error response.
        ClientGoneError: the client hung up.
    """
    body = with_server_defaults(await read_struct(context, request, decoder, REFUSED_CHAT), context.config)
    check_stream_fields(body)
    plan, role = await plan_chat(context, request, body, "chatcmpl-")
    return await _answer(context, request, plan, role)


async def plan_chat(
    context: ApiContext, request: Request, body: ChatRequest, id_prefix: str
) -> tuple[Plan[ChatRequest], str]:
    """Check a request and encode its prompt; return the plan, and the role of the answer.

    Args:
        context: of the process.
        request: of HTTP.
        body: of the chat, with the server's defaults.
        id_prefix: what the id of the answer begins with.

    Raises:
        SplitServeError: a field is wrong, or no engine serves the model.
    """
    call_rules(body.tools or (), body.tool_choice)
    options = _options(body)
    model, waited_s = await find_model_in_time(context, body)
    formats = context.answer_formats(model)
    options = replace(options, tools=shown_tools(body, formats))
    _check_top_logprobs(body, context.limits(model).max_logprobs)
    head = make_head(request, id_prefix, body.request_id, body.model, model)
    with tokenizing(request):
        prompt = await _encode(context, body, model, options)
    role = answer_role(body, options)
    shape, limit = _shape(body), context.config.max_answer_values
    params = _params(context, body, model, prompt, shape.max_tokens_within(limit, len(prompt.token_ids)))
    num_values = check_answer_size(shape, [len(prompt.token_ids)], [params.max_tokens or 0], limit)
    reading = answer_reading(body, formats, model.assets.tokenizer, prompt)
    params = _with_budget(params, body, context, model)
    calls = call_demand(body, params, reading)
    predicted = await _predicted(body, model)
    parts = body, head, model, [prompt], [params], num_values, waited_s, reading, calls
    return Plan(*parts, predicted=predicted), role


async def chat_prompt(context: ApiContext, body: ChatRequest) -> Prompt:
    """Return the prompt that plan_chat() makes of a request, which need not leave room for an answer.

    Raises:
        SplitServeError: as plan_chat().
    """
    call_rules(body.tools or (), body.tool_choice)
    options = _options(body)
    model = await find_model(context, body.model)
    options = replace(options, tools=shown_tools(body, context.answer_formats(model)))
    return await _encode(context, body, model, options)


def _options(body: ChatRequest) -> ChatOptions:
    return chat_options(
        body.add_generation_prompt,
        body.continue_final_message,
        body.documents,
        effort_variables(body.reasoning_effort, body.chat_template_kwargs),
    )


async def _encode(context: ApiContext, body: ChatRequest, model: ServedModel, options: ChatOptions) -> Prompt:
    encoder = PromptEncoder(
        model.assets,
        bool(body.add_special_tokens),
        read_truncation(
            body.truncate_prompt_tokens,
            body.truncation_side,
            _asked_max_tokens(body) or context.sampling_defaults(model).max_new_tokens or 1,
            model.assets.max_model_len,
        ),
        context.slices.turn,
    )
    return await encoder.encode_chat(template_messages(body.messages), options)


async def _predicted(body: ChatRequest, model: ServedModel) -> list[int]:
    """Return the tokens that the client expects, as many as could count."""
    if body.prediction is None:
        return []
    assets = model.assets
    text = body.prediction.text[: _MAX_CHARS_PER_TOKEN * assets.max_model_len]
    token_ids = await assets.tokenizer.encode_async(text, add_special_tokens=False)
    return token_ids[: assets.max_model_len]


async def _answer(context: ApiContext, request: Request, plan: Plan[ChatRequest], role: str) -> Response:
    run = GenerationRun(context, request, plan)
    opened = AnswerMessage(role=role, content=echoed_text(plan.body, role))
    readers = choice_readers(plan, run)
    if plan.body.stream:
        writer = ChatWriter(plan, run, opened, readers)
        return EventStream(RunEvents(run, writer), context.keep_alive, context.slices)
    answer, pieces = ChatAnswer(plan, opened, readers), JsonPieces()
    choices = await run.collect(request, answer.add if readers is not None else None)
    return json_answer(context, pieces, answer.response(pieces, run, choices))


def choice_readers(plan: Plan[ChatRequest], run: GenerationRun) -> ChoiceReaders | None:
    """Return what tells content, reasoning and tool calls apart; None if all text is content."""
    reading, prompt = plan.reading, plan.prompts[0].token_ids
    if reading is None:
        return None
    tokenizer, skips_special = plan.model.assets.tokenizer, plan.params[0].skip_special_tokens
    readers = [reading.reader(tokenizer, skips_special, prompt) for _ in range(plan.n)]
    return ChoiceReaders(readers, run.usage)


def _with_budget(
    params: SamplingParams, body: ChatRequest, context: ApiContext, model: ServedModel
) -> SamplingParams:
    """Return the parameters with the budget of reasoning that a request names, if it names one."""
    num_tokens = body.thinking_token_budget
    if num_tokens is None:
        return params
    reasoning, assets = context.answer_formats(model).reasoning, model.assets
    budget_of(num_tokens, reasoning, assets.tokenizer, assets.eos_token_ids)
    params, limits = msgspec.structs.replace(params, thinking_token_budget=num_tokens), context.limits(model)
    params.validate(limits.vocab_size, limits.max_logprobs)
    return params


def _asked_max_tokens(body: ChatRequest) -> int | None:
    return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens


def _check_top_logprobs(body: ChatRequest, most: int) -> None:
    if body.top_logprobs is None:
        return
    if not body.logprobs:
        raise InvalidRequestError("top_logprobs requires logprobs: true", "top_logprobs")
    if not 0 <= body.top_logprobs <= most:
        raise InvalidRequestError(f"top_logprobs must be an integer from 0 to {most}", "top_logprobs")


def _shape(body: ChatRequest) -> AnswerShape:
    return AnswerShape(
        n=body.n or 1,
        num_repeats=int(bool(body.return_token_ids)),
        prompt_logprobs=_num_prompt_logprobs(body),
        logprobs=None if body.stream else shown_per_token(body, _num_logprobs(body)),
    )


def _num_logprobs(body: ChatRequest) -> int | None:
    return (body.top_logprobs or 0) if body.logprobs else None


def _num_prompt_logprobs(body: ChatRequest) -> int | None:
    return _num_logprobs(body) if body.echo and body.prompt_logprobs is None else body.prompt_logprobs


def _params(
    context: ApiContext, body: ChatRequest, model: ServedModel, prompt: Prompt, max_shown: int | None
) -> SamplingParams:
    """Make the parameters; max_shown is the most output that the answer has room for, None for any."""
    defaults = context.sampling_defaults(model)
    default = min((each for each in (defaults.max_new_tokens, max_shown) if each), default=None)
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    asked = _asked_max_tokens(body)
    if asked is not None and asked < 1:
        raise InvalidRequestError(f"{name} must be an integer of at least 1, got {asked}", name)
    return make_sampling_params(
        body,
        defaults,
        context.limits(model),
        max_tokens=fit_max_tokens(
            asked, default, len(prompt.token_ids), model.assets.max_model_len, name, "messages"
        ),
        logprobs=_num_logprobs(body),
        prompt_logprobs=_num_prompt_logprobs(body),
    )
