"""The inputs of one HTTP request on their way to vectors: encoded, and run on the engines in groups."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from starlette.requests import Request

from splitserve.engine_core.errors import ContextLengthError, EngineRequestError, InvalidRequestError
from splitserve.frontend.engines.generation import POOLING_SAMPLING, GenerationRequest, OutputDelta
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.engines.stream.engine_generation import Generation
from splitserve.frontend.metrics.generation_timer import GenerationTimer
from splitserve.frontend.openai.context import ApiContext
from splitserve.frontend.openai.schema.vectors import VectorFields
from splitserve.frontend.text.pooling.vectors import check_vector
from splitserve.frontend.text.prompts import Prompt, PromptEncoder
from splitserve.frontend.text.truncation import TruncationSide, read_truncation

# Enough to fill the engines' batches, and few enough that others find room in their queues.
INPUTS_PER_GROUP = 512


class VectorInput(NamedTuple):
    """One text as token ids, or two of which the second begins at second_at, and its path in the request."""

    name: str
    token_ids: list[int]
    second_at: int = 0


def named_inputs(name: str, prompts: Sequence[Prompt], *, is_list: bool) -> list[VectorInput]:
    """Return the prompts of a field as inputs; those of a list are named by their place in it."""
    return [
        VectorInput(f"{name}[{i}]" if is_list else name, prompt.token_ids) for i, prompt in enumerate(prompts)
    ]


def vector_encoder(
    context: ApiContext, model: ServedModel, body: VectorFields, side: TruncationSide = "left"
) -> PromptEncoder:
    """Return what encodes the inputs of a request; `side` is truncated if it names none.

    Raises:
        InvalidRequestError: truncate_prompt_tokens is out of range.
    """
    limit, kept = model.assets.max_model_len, body.truncate_prompt_tokens
    # No room is needed for an output.
    truncation = read_truncation(limit if kept == -1 else kept, body.truncation_side or side, 0, limit)
    return PromptEncoder(model.assets, body.add_special_tokens is not False, truncation, context.slices.turn)


class VectorRun:
    """Runs the inputs of one request."""

    def __init__(
        self,
        context: ApiContext,
        request: Request,
        model: ServedModel,
        body: VectorFields,
        answer_id: str,
        *,
        of_tokens: bool = False,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            context: of the process.
            request: of HTTP.
            model: makes vectors.
            body: of the request.
            answer_id: for logs.
            of_tokens: the vector of each token is wanted.
        """
        self._pool = context.pool
        self._model = model
        self._metrics = context.metrics.model(model.names[0])
        self._request = GenerationRequest(
            request_id=answer_id,
            prompt_token_ids=[],
            sampling=POOLING_SAMPLING,
            priority=body.priority or 0,
            tenant=getattr(request.state, "tenant", ""),
            cache_salt=body.cache_salt or "",
            streams=False,
            model=model.identity,
            pools=True,
            pools_tokens=of_tokens,
        )
        self._changed = asyncio.Event()
        self._num_cached_tokens = 0
        self._log: dict[str, object] = request.state.log
        self._log |= {"model": model.names[0], "id": answer_id}

    async def collect(self, inputs: list[VectorInput]) -> list[bytes]:
        """Run all inputs; returns their vectors in order, each a float32 column, or those of their tokens.

        Raises:
            ContextLengthError: an input is too long.
            SplitServeError: an input failed, and with it the request.
        """
        self._check_lengths(inputs)
        self._log["prompt_tokens"] = sum(len(each.token_ids) for each in inputs)
        group_size = min(INPUTS_PER_GROUP, self._model.max_num_open)
        vectors: list[bytes] = []
        for first in range(0, len(inputs), group_size):
            group = [
                replace(
                    self._request,
                    request_id=f"{self._request.request_id}-{i}",
                    prompt_token_ids=each.token_ids,
                    second_at=each.second_at,
                    # What was done must not be lost to a queue that has filled up since.
                    continues=first > 0,
                )
                for i, each in enumerate(inputs[first : first + group_size], first)
            ]
            vectors += await self._vectors_of(group, inputs[first : first + group_size])
        self._metrics.cached_tokens += self._num_cached_tokens
        self._log["cached_tokens"] = self._num_cached_tokens
        size = self._model.info.pooled_size
        for values, each in zip(vectors, inputs, strict=True):
            check_vector(values, size * len(each.token_ids) if self._request.pools_tokens else size)
        return vectors

    def _check_lengths(self, inputs: list[VectorInput]) -> None:
        limit = self._model.assets.max_model_len
        for name, token_ids, _ in inputs:
            if len(token_ids) > limit:
                raise ContextLengthError.of(limit, len(token_ids), None, name, "input")

    async def _vectors_of(self, group: list[GenerationRequest], inputs: list[VectorInput]) -> list[bytes]:
        timers = [GenerationTimer(self._metrics) for _ in group]
        for each in group:
            self._metrics.prompt_tokens.observe(len(each.prompt_token_ids))
        opened = await self._pool.open(self._model.names[0], group, self._changed.set)
        vectors = [b""] * len(group)
        waiting = set(range(len(group)))
        try:
            while waiting:
                await self._changed.wait()
                self._changed.clear()
                for i in list(waiting):
                    for delta in _taken(opened[i], inputs[i].name):
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
    """Take what is new of an input; an error of its own names it."""
    try:
        return generation.take()
    except (EngineRequestError, InvalidRequestError) as error:
        if error.param in (None, "prompt"):
            error.param = name
        raise
