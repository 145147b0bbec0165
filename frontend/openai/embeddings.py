"""POST /v1/embeddings: inputs encoded, run in groups, and answered with their vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from splitserve.engine_core.errors import ContextLengthError, EngineRequestError, InvalidRequestError
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.generation import GenerationRequest
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.engines.stream.engine_generation import Generation
from splitserve.frontend.http.connection.disconnect import ClientWatch
from splitserve.frontend.http.json_body import BodyDecoder
from splitserve.frontend.http.response.json_pieces import JsonPieces
from splitserve.frontend.openai.context import ApiContext, json_answer, make_head, read_struct
from splitserve.frontend.openai.models import find_model
from splitserve.frontend.openai.prompts import encode_prompts
from splitserve.frontend.openai.schema.embeddings import (
    MAX_INPUTS,
    Embedding,
    EmbeddingRequest,
    EmbeddingResponse,
    EmbeddingUsage,
)
from splitserve.frontend.openai.schema.unsupported import known_beside
from splitserve.frontend.text.prompts import Prompt, PromptEncoder
from splitserve.frontend.text.truncation import read_truncation
from splitserve.frontend.text.vectors import (
    as_base64,
    check_dimensions,
    check_embeds,
    check_vector,
    finished_vector,
)

decoder = BodyDecoder(EmbeddingRequest, known_beside({}))

# Enough to fill the engines' batches, and few enough that others find room in their queues.
_INPUTS_PER_GROUP = 512
SAMPLING = SamplingParams(max_tokens=0, temperature=0.0, detokenize=False)


async def create_embeddings(context: ApiContext, request: Request) -> Response:
    """Answer one request.

    Raises:
        SplitServeError: app.py makes the error response.
        ClientGoneError: the client hung up.
    """
    body = await read_struct(context, request, decoder, {})
    model = await find_model(context, body.model)
    size = model.info.embedding_size
    check_embeds(model.names[0], size)
    dimensions = check_dimensions(body.dimensions, size)
    head = make_head(request, "embd-", None, body.model, model)
    limit, kept = model.assets.max_model_len, body.truncate_prompt_tokens
    # No room is needed for an output.
    truncation = read_truncation(limit if kept == -1 else kept, body.truncation_side, 0, limit)
    encoder = PromptEncoder(
        model.assets, body.add_special_tokens is not False, truncation, context.slices.turn
    )
    prompts = await encode_prompts(body.input, encoder, "input", MAX_INPUTS)
    for i, prompt in enumerate(prompts):
        if len(prompt.token_ids) > limit:
            param = _names(i, 1, len(prompts))[0]
            raise ContextLengthError.of(limit, len(prompt.token_ids), None, param, "input")
    vectors = await _collect(context, request, _requests(request, body, head.id, model, prompts), model)
    for values in vectors:
        check_vector(values, size)
    normalizes = model.info.normalizes if body.normalize is None else body.normalize
    pieces = JsonPieces()

    def embeddings() -> Iterator[Embedding]:
        for index, values in enumerate(vectors):
            vector = finished_vector(values, dimensions, normalizes=normalizes)
            yield Embedding(index, as_base64(vector) if body.encoding_format == "base64" else vector.tolist())

    num_tokens = sum(len(prompt.token_ids) for prompt in prompts)
    answer = EmbeddingResponse(
        id=head.id,
        created=head.created,
        model=head.model,
        data=pieces.long_list(embeddings(), len(vectors), dimensions),
        usage=EmbeddingUsage(num_tokens, num_tokens),
    )
    return json_answer(context, pieces, answer)


def _requests(
    request: Request, body: EmbeddingRequest, answer_id: str, model: ServedModel, prompts: list[Prompt]
) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            request_id=answer_id if len(prompts) == 1 else f"{answer_id}-{i}",
            prompt_token_ids=prompt.token_ids,
            sampling=SAMPLING,
            priority=body.priority or 0,
            tenant=getattr(request.state, "tenant", ""),
            cache_salt=body.cache_salt or "",
            streams=False,
            model=model.identity,
            pools=True,
        )
        for i, prompt in enumerate(prompts)
    ]


async def _collect(
    context: ApiContext, request: Request, requests: list[GenerationRequest], model: ServedModel
) -> list[bytes]:
    """Run all inputs; returns their vectors in order, as the engines sent them."""
    name, vectors = model.names[0], list[bytes]()
    metrics = context.metrics.model(name)
    request.state.log |= {
        "model": name,
        "prompt_tokens": sum(len(each.prompt_token_ids) for each in requests),
    }
    group_size = min(_INPUTS_PER_GROUP, model.max_num_open)
    changed = asyncio.Event()
    async with ClientWatch(request.receive):
        for first in range(0, len(requests), group_size):
            group = requests[first : first + group_size]
            for each in group:
                metrics.prompt_tokens.observe(len(each.prompt_token_ids))
            opened = await context.pool.open(name, group, changed.set)
            try:
                names = _names(first, len(group), len(requests))
                vectors += await _vectors_of(opened, names, changed)
            finally:
                for generation in opened:
                    generation.close()
    return vectors


def _names(first: int, count: int, num_inputs: int) -> list[str]:
    return ["input"] if num_inputs == 1 else [f"input[{first + i}]" for i in range(count)]


async def _vectors_of(opened: list[Generation], names: list[str], changed: asyncio.Event) -> list[bytes]:
    """Return the vectors of a group; an error of one input names it."""
    vectors = [b""] * len(opened)
    waiting = set(range(len(opened)))
    while waiting:
        await changed.wait()
        changed.clear()
        for i in list(waiting):
            try:
                deltas = opened[i].take()
            except (EngineRequestError, InvalidRequestError) as error:
                if error.param in (None, "prompt"):
                    error.param = names[i]
                raise
            for delta in deltas:
                vectors[i] = delta.pooled or vectors[i]
            if opened[i].finished:
                waiting.remove(i)
    return vectors
