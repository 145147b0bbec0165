"""POST /v1/embeddings: inputs encoded, run in groups, and answered with their vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from splitserve.engine_core.errors import ContextLengthError, EngineRequestError, InvalidRequestError
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.generation import GenerationRequest, OutputDelta
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.engines.stream.engine_generation import Generation
from splitserve.frontend.http.connection.disconnect import ClientWatch
from splitserve.frontend.http.json_body import BodyDecoder
from splitserve.frontend.http.response.json_pieces import JsonPieces
from splitserve.frontend.metrics.generation_timer import GenerationTimer
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
    async with ClientWatch(request.receive):
        prompts = await encode_prompts(body.input, encoder, "input", MAX_INPUTS)
        _check_lengths(prompts, limit)
        run = _Run(context, request, model, _requests(request, body, head.id, model, prompts), head.id)
        vectors = await run.collect()
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


def _check_lengths(prompts: list[Prompt], limit: int) -> None:
    for i, prompt in enumerate(prompts):
        if len(prompt.token_ids) > limit:
            (param,) = _names(i, 1, len(prompts))
            raise ContextLengthError.of(limit, len(prompt.token_ids), None, param, "input")


class _Run:
    """The inputs of one request on their way through the engines, group after group."""

    def __init__(
        self,
        context: ApiContext,
        request: Request,
        model: ServedModel,
        requests: list[GenerationRequest],
        answer_id: str,
    ) -> None:
        self._pool = context.pool
        self._name = model.names[0]
        self._metrics = context.metrics.model(self._name)
        self._requests = requests
        self._group_size = min(_INPUTS_PER_GROUP, model.max_num_open)
        self._changed = asyncio.Event()
        self._num_cached_tokens = 0
        self._log: dict[str, object] = request.state.log
        num_tokens = sum(len(each.prompt_token_ids) for each in requests)
        self._log |= {"model": self._name, "id": answer_id, "prompt_tokens": num_tokens}

    async def collect(self) -> list[bytes]:
        """Run all inputs; returns their vectors in order, as the engines sent them.

        Raises:
            SplitServeError: an input failed, and with it the request.
        """
        vectors: list[bytes] = []
        for first in range(0, len(self._requests), self._group_size):
            group = self._requests[first : first + self._group_size]
            if first:
                # What was done must not be lost to a queue that has filled up since.
                group = [replace(each, continues=True) for each in group]
            vectors += await self._vectors_of(group, _names(first, len(group), len(self._requests)))
        self._metrics.cached_tokens += self._num_cached_tokens
        self._log["cached_tokens"] = self._num_cached_tokens
        return vectors

    async def _vectors_of(self, group: list[GenerationRequest], names: list[str]) -> list[bytes]:
        """Return the vectors of a group; an error of one input names it."""
        timers = [GenerationTimer(self._metrics) for _ in group]
        for each in group:
            self._metrics.prompt_tokens.observe(len(each.prompt_token_ids))
        opened = await self._pool.open(self._name, group, self._changed.set)
        vectors = [b""] * len(group)
        waiting = set(range(len(group)))
        try:
            while waiting:
                await self._changed.wait()
                self._changed.clear()
                for i in list(waiting):
                    for delta in _taken(opened[i], names[i]):
                        vectors[i] = delta.pooled or vectors[i]
                        timers[i].on_delta(delta)
                        self._num_cached_tokens += delta.num_cached_tokens
                    if opened[i].finished:
                        waiting.remove(i)
        finally:
            for generation in opened:
                generation.close()
        return vectors


def _taken(generation: Generation, name: str) -> list[OutputDelta]:
    try:
        return generation.take()
    except (EngineRequestError, InvalidRequestError) as error:
        if error.param in (None, "prompt"):
            error.param = name
        raise


def _names(first: int, count: int, num_inputs: int) -> list[str]:
    return ["input"] if num_inputs == 1 else [f"input[{first + i}]" for i in range(count)]
