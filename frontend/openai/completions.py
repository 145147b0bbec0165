"""POST /v1/completions: fields checked, prompts encoded, run, and answered whole or as a stream."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.generation import TokenLogprob
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.http.json_body import BodyDecoder
from splitserve.frontend.http.response.json_pieces import JsonPieces
from splitserve.frontend.http.response.sse import EventStream
from splitserve.frontend.observability.request_trace import tokenizing
from splitserve.frontend.openai.answers.answer_size import AnswerShape, check_answer_size, shown_per_token
from splitserve.frontend.openai.answers.completion_chunks import CompletionText, CompletionWriter
from splitserve.frontend.openai.answers.logprobs import prompt_maps
from splitserve.frontend.openai.context import ApiContext, json_answer, make_head, read_struct
from splitserve.frontend.openai.generation_run import CollectedChoice, GenerationRun
from splitserve.frontend.openai.models import find_model_in_time
from splitserve.frontend.openai.plan import Plan
from splitserve.frontend.openai.prompts import encode_prompts
from splitserve.frontend.openai.run_events import RunEvents
from splitserve.frontend.openai.schema.completions import (
    DEFAULT_MAX_TOKENS,
    CompletionChoice,
    CompletionRequest,
    CompletionResponse,
)
from splitserve.frontend.openai.schema.sampling import (
    check_stream_fields,
    fit_max_tokens,
    make_sampling_params,
)
from splitserve.frontend.openai.schema.server_defaults import with_server_defaults
from splitserve.frontend.openai.schema.unsupported import REFUSED, known_beside
from splitserve.frontend.text.prompts import Prompt, PromptEncoder
from splitserve.frontend.text.truncation import read_truncation

decoder = BodyDecoder(CompletionRequest, known_beside(REFUSED))


async def create_completion(context: ApiContext, request: Request) -> Response:
    """Answer one request.

    Raises:
        SplitServeError: before the answer has begun; app.py makes the error response.
        ClientGoneError: the client hung up.
    """
    body = with_server_defaults(await read_struct(context, request, decoder, REFUSED), context.config)
    check_stream_fields(body)
    model, waited_s = await find_model_in_time(context, body)
    head = make_head(request, "cmpl-", body.request_id, body.model, model)
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    encoder = PromptEncoder(
        model.assets,
        body.add_special_tokens is not False,
        read_truncation(
            body.truncate_prompt_tokens, body.truncation_side, max_tokens, model.assets.max_model_len
        ),
        context.slices.turn,
    )
    with tokenizing(request):
        prompts = await encode_prompts(body.prompt, encoder)
    params = _params(context, body, model, prompts)
    num_values = _check_size(context, body, prompts, params)
    plan = Plan(body, head, model, prompts, params, num_values, waited_s)
    run = GenerationRun(context, request, plan)
    texts = [CompletionText(body, model.assets.tokenizer, prompt) for prompt in prompts for _ in range(run.n)]
    if body.stream:
        return EventStream(
            RunEvents(run, CompletionWriter(plan, run, texts)), context.keep_alive, context.slices
        )
    choices = await run.collect(request)
    pieces = JsonPieces()
    return json_answer(context, pieces, _response(pieces, plan, run, choices, texts))


def _check_size(
    context: ApiContext, body: CompletionRequest, prompts: list[Prompt], params: list[SamplingParams]
) -> int:
    shape = AnswerShape(
        n=params[0].n,
        num_repeats=params[0].n * (bool(body.echo) + bool(body.return_token_ids)),
        echo_logprobs=body.logprobs if body.echo else None,
        prompt_logprobs=body.prompt_logprobs,
        logprobs=None if body.stream else shown_per_token(body, body.logprobs),
    )
    lengths = [len(prompt.token_ids) for prompt in prompts]
    return check_answer_size(
        shape, lengths, [each.max_tokens or 0 for each in params], context.config.max_answer_values
    )


def _params(
    context: ApiContext, body: CompletionRequest, model: ServedModel, prompts: list[Prompt]
) -> list[SamplingParams]:
    """Make the parameters of each prompt; those that are the same are made and checked once."""
    limit = model.assets.max_model_len
    rooms = [
        fit_max_tokens(body.max_tokens, DEFAULT_MAX_TOKENS, len(prompt.token_ids), limit)
        for prompt in prompts
    ]
    made = {
        max_tokens: make_sampling_params(
            body,
            context.sampling_defaults(model),
            context.limits(model),
            max_tokens=max_tokens,
            logprobs=body.logprobs,
            prompt_logprobs=_num_prompt_logprobs(body),
        )
        for max_tokens in dict.fromkeys(rooms)
    }
    return [made[max_tokens] for max_tokens in rooms]


def _num_prompt_logprobs(body: CompletionRequest) -> int | None:
    """Return the alternatives that serve both prompt_logprobs and an echo; None if neither is asked for."""
    counts = (body.prompt_logprobs, body.logprobs if body.echo else None)
    # What is below 0 goes before all, so that it is refused.
    return max((count for count in counts if count is not None), key=lambda c: (c < 0, c), default=None)


def _response(
    pieces: JsonPieces,
    plan: Plan[CompletionRequest],
    run: GenerationRun,
    choices: list[CollectedChoice],
    texts: list[CompletionText],
) -> CompletionResponse:
    head = plan.head
    return CompletionResponse(
        id=head.id,
        created=head.created,
        model=head.model,
        system_fingerprint=head.system_fingerprint,
        choices=pieces.long_list(
            (
                _choice(pieces, plan, i, choice, text, choices[i - i % run.n].prompt_logprobs)
                for i, (choice, text) in enumerate(zip(choices, texts, strict=True))
            ),
            len(choices),
            plan.values_per_choice,
        ),
        usage=run.usage.usage(),
        metrics=run.metrics(),
    )


def _choice(
    pieces: JsonPieces,
    plan: Plan[CompletionRequest],
    index: int,
    choice: CollectedChoice,
    text: CompletionText,
    echoed: Sequence[TokenLogprob | None] | None,
) -> CompletionChoice:
    body = plan.body
    return CompletionChoice(
        index=index,
        text=text.shown(pieces, "".join(choice.texts)),
        logprobs=text.logprobs(pieces, choice.token_ids, choice.logprobs, echoed),
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        token_ids=pieces.ids(choice.token_ids) if body.return_token_ids else None,
        prompt_token_ids=pieces.ids(text.prompt.token_ids) if body.return_token_ids else None,
        prompt_logprobs=(
            None
            if body.prompt_logprobs is None or choice.prompt_logprobs is None
            else prompt_maps(
                pieces, plan.model.assets.tokenizer, choice.prompt_logprobs, body.prompt_logprobs
            )
        ),
    )
