"""One HTTP request's generations: opened together, counted and timed, then collected or streamed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starlette.requests import Request

from splitserve.engine_core.errors import EngineRequestError, InvalidRequestError, SplitServeError
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.connection.token_relay import Frame
from splitserve.frontend.engines.generation import OutputDelta, TokenLogprob
from splitserve.frontend.engines.request_check import check_num_sequences
from splitserve.frontend.engines.stream.engine_generation import Generation
from splitserve.frontend.http.connection.disconnect import ClientWatch
from splitserve.frontend.http.slices import SLICE_VALUES
from splitserve.frontend.metrics.generation_timer import GenerationTimer
from splitserve.frontend.metrics.request_metrics import RequestMetrics
from splitserve.frontend.observability.logged_text import AnswerLog
from splitserve.frontend.observability.request_trace import trace_of
from splitserve.frontend.openai.answers.logprobs import values_per_token
from splitserve.frontend.openai.answers.usage import UsageCounter
from splitserve.frontend.openai.context import ApiContext
from splitserve.frontend.openai.fast_path import TextFastPath
from splitserve.frontend.openai.other_names import errors_named
from splitserve.frontend.openai.plan import BodyT, Plan, generation_requests
from splitserve.frontend.openai.traced_run import TracedRun

# Without logprobs a token costs 0.1 us, and the event that shows any number of them some 8 us.
_PLAIN_TOKENS_PER_SLICE = 4096
_PLAIN_TOKENS_PER_DELTA = 32


@dataclass(slots=True)
class CollectedChoice:
    """All of one completion; logprobs as they came, in parts."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Sequence[TokenLogprob]] = field(default_factory=list)
    prompt_logprobs: Sequence[TokenLogprob | None] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def add(self, delta: OutputDelta) -> None:
        """Append one delta."""
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        if delta.logprobs:
            self.logprobs.append(delta.logprobs)
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
        finished: whether all completions of all prompts have had their last delta.
        behind: whether the last take() has left something, and would return more now.
    """

    def __init__(self, context: ApiContext, request: Request, plan: Plan[BodyT]) -> None:
        """Prepare; open() sends it to the engines."""
        self.n = plan.n
        self.finished = False
        self.behind = False
        self._num_open = len(plan.prompts) * self.n
        self._slices = context.slices
        self._max_tokens, self._min_per_delta = _slice_size(plan.params[0])
        # The generation to ask first, so that all get their turn when the limit is too low for all.
        self._next = 0
        lengths = [len(prompt.token_ids) for prompt in plan.prompts]
        self.usage = UsageCounter(lengths, self.n)
        self._pool = context.pool
        self._names = plan.names
        self._model_name = plan.model.names[0]
        self._model_metrics = context.metrics.model(plan.model.root)
        self._timers = [GenerationTimer(self._model_metrics) for _ in range(self._num_open)]
        self._generations: list[Generation] = []
        tells_metrics = context.config.enable_per_request_metrics and not plan.body.use_beam_search
        self._tells_metrics = tells_metrics and self._num_open == 1
        # Tokens that arrive late and joined could not be timed.
        streams = bool(plan.body.stream) or self._tells_metrics
        self._requests = generation_requests(plan, getattr(request.state, "tenant", ""), streams=streams)
        is_logged = context.config.log_requests == "full"
        self._answer_log = AnswerLog(request.state.request_id, self._num_open) if is_logged else None
        trace = trace_of(request)
        self._traced = TracedRun(trace, plan) if trace is not None else None
        self._log: dict[str, object] = request.state.log
        self._log |= {"model": self._model_name, "stream": bool(plan.body.stream), "id": plan.head.id}

    async def open(self, on_ready: Callable[[], None]) -> None:
        """Send all prompts to the engines; close() follows, however this ends.

        Args:
            on_ready: called by the event loop when take() may have something.

        Raises:
            SplitServeError: as EnginePool.open().
        """
        if len(self._requests) > 1:
            self._check_room()
        for request in self._requests:
            self._model_metrics.prompt_tokens.observe(len(request.prompt_token_ids))
            self._model_metrics.params_n.observe(self.n)
            self._model_metrics.params_max_tokens.observe(request.sampling.max_tokens or 0)
        with errors_named(self._names):
            self._generations = await self._pool.open(self._model_name, self._requests, on_ready)

    def _check_room(self) -> None:
        """Refuse more sequences than all engines of the model together ever hold."""
        models = [status.model for status in self._pool.status()]
        name = self._model_name
        limits = [m.max_num_open for m in models if m is not None and m.named(name) is not None]
        # Without an engine it is the pool that says so.
        if limits:
            check_num_sequences(len(self._requests), self._requests[0].sampling, sum(limits))

    def take(self) -> list[tuple[int, OutputDelta]]:
        """Return about a slice of what is new, as pairs of prompt index and delta, counted and timed.

        Raises:
            SplitServeError: a sequence failed, and with it the whole request.
        """
        batch: list[tuple[int, OutputDelta]] = []
        first, num_generations, num_left = self._next, len(self._generations), self._max_tokens
        self.behind = False
        for i in range(first, first + num_generations):
            prompt_idx = i % num_generations
            if num_left <= 0:
                self._next, self.behind = prompt_idx, True
                break
            generation = self._generations[prompt_idx]
            for delta in self._take_of(prompt_idx, generation, num_left):
                num_left -= max(len(delta.token_ids), self._min_per_delta)
                self._count(prompt_idx * self.n + delta.index, delta)
                batch.append((prompt_idx, delta))
            self.behind = self.behind or generation.behind
        return batch

    def _take_of(self, prompt_idx: int, generation: Generation, max_tokens: int) -> list[OutputDelta]:
        """Take what is new of one prompt; an error of its own names it if there are several."""
        try:
            return generation.take(max_tokens)
        except SplitServeError as error:
            if self._traced is not None:
                self._traced.failed(error.code)
            if not isinstance(error, (EngineRequestError, InvalidRequestError)):
                raise
            if len(self._generations) > 1 and error.code != "timeout" and error.param in (None, "prompt"):
                error.param = f"prompt[{prompt_idx}]"
            raise

    def _count(self, choice_idx: int, delta: OutputDelta) -> None:
        self._timers[choice_idx].on_delta(delta)
        self.usage.add(choice_idx, delta)
        if self._answer_log is not None:
            self._answer_log.add(choice_idx, delta.text)
        if delta.finish_reason is not None:
            if self._traced is not None:
                self._traced.ended(choice_idx, delta)
            self._num_open -= 1
            self.finished = not self._num_open

    def fast_path(self, frame: Frame) -> TextFastPath | None:
        """Return the fast path of the only completion; None for several, a search, or text that is logged.

        Args:
            frame: of its events.
        """
        stream = self._generations[0].only_stream if len(self._timers) == 1 else None
        if stream is None or self._answer_log is not None:
            return None
        latency = self._model_metrics.inter_token_latency.buckets
        return TextFastPath(stream, frame, latency, self._timers[0], self.usage)

    def metrics(self) -> RequestMetrics | None:
        """Return the times of the only completion; None if there are several or they are not asked for."""
        return self._timers[0].times().metrics() if self._tells_metrics else None

    def close(self) -> None:
        """Abort what is still open and record the totals; called once, by the owner."""
        for generation in self._generations:
            generation.close()
        usage = self.usage.usage()
        if self.finished:
            counts = [timer.num_tokens for timer in self._timers]
            for i in range(0, len(counts), self.n):
                self._model_metrics.max_generation_tokens.observe(max(counts[i : i + self.n]))
        self._model_metrics.cached_tokens += self.usage.cached_tokens
        self._log |= {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
        }
        if self._answer_log is not None:
            self._answer_log.write()
        if self._traced is not None:
            self._traced.close(self._timers, usage)

    async def collect(
        self, request: Request, on_delta: Callable[[OutputDelta], object] | None = None
    ) -> list[CollectedChoice]:
        """Run to the end; returns the choices in order of index.

        Args:
            request: whose client is waiting.
            on_delta: gets each delta, too.

        Raises:
            ClientGoneError: the client hung up; everything is aborted.
            SplitServeError: as EnginePool.generate().
        """
        choices = [CollectedChoice() for _ in range(len(self._requests) * self.n)]
        changed = asyncio.Event()
        async with ClientWatch(request.receive):
            with contextlib.closing(self):
                await self.open(changed.set)
                while not self.finished:
                    await changed.wait()
                    changed.clear()
                    for prompt_idx, delta in self.take():
                        choices[prompt_idx * self.n + delta.index].add(delta)
                        if on_delta is not None:
                            on_delta(delta)
                    if self.behind:
                        changed.set()
                        await self._slices.turn()
        return choices


def _slice_size(sampling: SamplingParams) -> tuple[int, int]:
    """Return how many tokens a slice takes, and as how many a delta counts that has fewer."""
    if sampling.logprobs is None:
        return _PLAIN_TOKENS_PER_SLICE, _PLAIN_TOKENS_PER_DELTA
    return max(1, SLICE_VALUES // values_per_token(sampling.logprobs, len(sampling.logprob_token_ids))), 1
