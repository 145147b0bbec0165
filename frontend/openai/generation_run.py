"""One HTTP request's generations: started together, counted and timed, collected or streamed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from starlette.requests import Request

from engine_core.sampling_params import SamplingParams
from frontend.disconnect import ClientWatch
from frontend.event_log import Value
from frontend.fanout import merge_deltas
from frontend.generation import GenerationRequest, OutputDelta, TokenLogprob
from frontend.generation_timer import GenerationTimer
from frontend.openai.context import ApiContext, ResponseHead
from frontend.openai.fields import GenerationFields
from frontend.openai.prompts import Prompt
from frontend.openai.timeouts import read_timeouts
from frontend.openai.usage import UsageCounter
from frontend.router import ServedModel

BodyT = TypeVar("BodyT", bound=GenerationFields)


@dataclass(slots=True, frozen=True)
class Plan(Generic[BodyT]):
    """A checked request, ready to run.

    Attributes:
        params: one per prompt; n is the same in all.
    """

    body: BodyT
    head: ResponseHead
    model: ServedModel
    prompts: list[Prompt]
    params: list[SamplingParams]

    @property
    def n(self) -> int:
        """Completions per prompt."""
        return self.params[0].n


class ChunkWriter(Protocol):
    """Turns the deltas of one request into the bytes of its stream."""

    def opening(self) -> bytes:
        """Return what goes before the first delta."""

    def chunk(self, prompt_idx: int, delta: OutputDelta) -> bytes:
        """Return the event of one delta; b"" if it shows nothing."""

    def closing(self) -> bytes:
        """Return what goes before [DONE]."""


@dataclass(slots=True)
class CollectedChoice:
    """All of one completion."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def add(self, delta: OutputDelta) -> None:
        """Append one delta."""
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = delta.stop_reason


class GenerationRun:
    """The prompts of one HTTP request on their way through the engines.

    Attributes:
        usage: token counts so far.
        n: completions per prompt; choice index = prompt index * n + delta index.
    """

    def __init__(self, context: ApiContext, request: Request, plan: Plan[BodyT]) -> None:
        """Prepare; nothing is sent to an engine before the first delta is asked for."""
        self.n = plan.n
        lengths = [len(prompt.token_ids) for prompt in plan.prompts]
        self.usage = UsageCounter(lengths, self.n)
        self._pool = context.pool
        self._model_name = plan.model.names[0]
        self._model_metrics = context.metrics.model(self._model_name)
        self._timers = [GenerationTimer(self._model_metrics, self.n) for _ in plan.prompts]
        self._requests = _requests(plan, getattr(request.state, "tenant", ""))
        self._log: dict[str, Value] = request.state.log
        self._log |= {"model": self._model_name, "stream": bool(plan.body.stream), "id": plan.head.id}

    async def deltas(self) -> AsyncGenerator[list[tuple[int, OutputDelta]], None]:
        """Yield batches of (prompt index, delta), counted and timed; closing it aborts what is open."""
        for request in self._requests:
            self._model_metrics.prompt_tokens.observe(len(request.prompt_token_ids))
            self._model_metrics.params_n.observe(self.n)
            self._model_metrics.params_max_tokens.observe(request.sampling.max_tokens or 0)
        sources = [self._pool.generate(self._model_name, request) for request in self._requests]
        merged = merge_deltas(sources, self.n)
        try:
            async with contextlib.aclosing(merged):
                async for batch in merged:
                    for prompt_idx, delta in batch:
                        self._observe(prompt_idx, delta)
                    yield list(batch)
        finally:
            self._finish()

    def _observe(self, prompt_idx: int, delta: OutputDelta) -> None:
        self._timers[prompt_idx].on_delta(delta)
        self.usage.add(prompt_idx, delta)

    def _finish(self) -> None:
        usage = self.usage.usage()
        self._model_metrics.cached_tokens += self.usage.cached_tokens
        self._log |= {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
        }

    async def collect(self, request: Request) -> list[CollectedChoice]:
        """Run to the end; returns the choices in order of index.

        Raises:
            ClientGoneError: the client hung up; everything is aborted.
            SplitServeError: as EnginePool.generate().
        """
        choices = [CollectedChoice() for _ in range(len(self._requests) * self.n)]
        async with ClientWatch(request.receive), contextlib.aclosing(self.deltas()) as deltas:
            async for batch in deltas:
                for prompt_idx, delta in batch:
                    choices[prompt_idx * self.n + delta.index].add(delta)
        return choices

    async def events(self, writer: ChunkWriter) -> AsyncGenerator[bytes, None]:
        """Yield the events of a stream, those that are ready together in one piece."""
        pending = [writer.opening()]
        async with contextlib.aclosing(self.deltas()) as deltas:
            async for batch in deltas:
                pending += [writer.chunk(prompt_idx, delta) for prompt_idx, delta in batch]
                data = b"".join(pending)
                pending.clear()
                if data:
                    yield data
        yield writer.closing()


def _requests(plan: Plan[BodyT], tenant: str) -> list[GenerationRequest]:
    request_id, body = plan.head.id, plan.body
    timeout_s, queue_timeout_s = read_timeouts(body)
    return [
        GenerationRequest(
            request_id=request_id if len(plan.prompts) == 1 else f"{request_id}-{i}",
            prompt_token_ids=prompt.token_ids,
            sampling=sampling,
            priority=body.priority or 0,
            tenant=tenant,
            cache_salt=body.cache_salt or "",
            timeout_s=timeout_s,
            queue_timeout_s=queue_timeout_s,
        )
        for i, (prompt, sampling) in enumerate(zip(plan.prompts, plan.params, strict=True))
    ]
