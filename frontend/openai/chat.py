"""POST /v1/chat/completions: fields checked, template rendered, run, answered whole or as a stream."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from engine_core.errors import InvalidRequestError
from engine_core.sampling_params import SamplingParams
from frontend.json_body import BodyDecoder
from frontend.openai.chat_chunks import ChatWriter
from frontend.openai.chat_echo import answer_role, echoed_text
from frontend.openai.chat_schema import AnswerMessage, ChatChoice, ChatRequest, ChatResponse
from frontend.openai.context import ApiContext, json_response, make_head, read_struct
from frontend.openai.generation_run import CollectedChoice, GenerationRun, Plan, RunEvents
from frontend.openai.logprobs import ChatLogprobs, chat_entries, prompt_maps, token_texts
from frontend.openai.models import find_model
from frontend.openai.prompts import Prompt, chat_options, encode_chat
from frontend.openai.sampling import check_stream_fields, fit_max_tokens, make_sampling_params
from frontend.openai.server_defaults import with_server_defaults
from frontend.openai.unsupported import REFUSED
from frontend.router import ServedModel
from frontend.sse import EventStream
from frontend.truncation import read_truncation

decoder = BodyDecoder(ChatRequest)


async def create_chat_completion(context: ApiContext, request: Request) -> Response:
    """Answer one request.

    Raises:
        SplitServeError: before the answer has begun; app.py makes the error response.
        ClientGoneError: the client hung up.
    """
    body = with_server_defaults(await read_struct(context, request, decoder, REFUSED), context.config)
    check_stream_fields(body)
    options = chat_options(
        body.add_generation_prompt, body.continue_final_message, body.documents, body.chat_template_kwargs
    )
    model = await find_model(context, body.model)
    _check_top_logprobs(body, context.limits(model).max_logprobs)
    head = make_head(request, "chatcmpl", body.request_id, body.model, model)
    prompt = await encode_chat(
        body.messages,
        options,
        model.assets,
        add_special_tokens=bool(body.add_special_tokens),
        truncation=read_truncation(
            body.truncate_prompt_tokens,
            body.truncation_side,
            _asked_max_tokens(body) or context.sampling_defaults(model).max_new_tokens or 1,
            model.assets.max_model_len,
        ),
    )
    role = answer_role(body, options)
    plan = Plan(body, head, model, [prompt], [_params(context, body, model, prompt)])
    run = GenerationRun(context, request, plan)
    if body.stream:
        writer = ChatWriter(plan, run, AnswerMessage(role=role, content=echoed_text(body, role)))
        return EventStream(RunEvents(run, writer), context.keep_alive)
    choices = await run.collect(request)
    return json_response(_response(plan, run, choices, role))


def _asked_max_tokens(body: ChatRequest) -> int | None:
    return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens


def _check_top_logprobs(body: ChatRequest, most: int) -> None:
    if body.top_logprobs is None:
        return
    if not body.logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs: true", "top_logprobs")
    if not 0 <= body.top_logprobs <= most:
        raise InvalidRequestError(f"top_logprobs must be an integer from 0 to {most}", "top_logprobs")


def _params(context: ApiContext, body: ChatRequest, model: ServedModel, prompt: Prompt) -> SamplingParams:
    defaults = context.sampling_defaults(model)
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    asked = _asked_max_tokens(body)
    if asked is not None and asked < 1:
        raise InvalidRequestError(f"{name} must be an integer of at least 1, got {asked}", name)
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return make_sampling_params(
        body,
        defaults,
        context.limits(model),
        max_tokens=fit_max_tokens(
            asked,
            defaults.max_new_tokens,
            len(prompt.token_ids),
            model.assets.max_model_len,
            name,
            "messages",
        ),
        logprobs=num_logprobs,
        prompt_logprobs=num_logprobs if body.echo and body.prompt_logprobs is None else body.prompt_logprobs,
    )


def _response(
    plan: Plan[ChatRequest], run: GenerationRun, choices: list[CollectedChoice], role: str
) -> ChatResponse:
    body, head, tokenizer = plan.body, plan.head, plan.model.assets.tokenizer
    texts = token_texts(tokenizer, as_token_ids=body.return_tokens_as_token_ids)
    echoed = echoed_text(body, role)
    prompt_logprobs = choices[0].prompt_logprobs
    return ChatResponse(
        id=head.id,
        created=head.created,
        model=head.model,
        system_fingerprint=head.system_fingerprint,
        choices=[
            ChatChoice(
                index=i,
                message=AnswerMessage(role=role, content=echoed + "".join(choice.texts)),
                logprobs=ChatLogprobs(chat_entries(texts, choice.logprobs)) if body.logprobs else None,
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                token_ids=choice.token_ids if body.return_token_ids else None,
            )
            for i, choice in enumerate(choices)
        ],
        usage=run.usage.usage(),
        metrics=run.metrics(),
        prompt_token_ids=plan.prompts[0].token_ids if body.return_token_ids else None,
        prompt_logprobs=None if prompt_logprobs is None else prompt_maps(tokenizer, prompt_logprobs),
    )
