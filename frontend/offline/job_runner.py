"""Runs the jobs of a script: many at once, each to its output."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.generation import GenerationRequest
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.metrics.request_metrics import RequestTimes
from splitserve.frontend.offline.jobs import ChatJob, PairJob, PromptJob
from splitserve.frontend.offline.outputs import CompletionOutput, RequestOutput, collect_outputs
from splitserve.frontend.offline.params import fit_context
from splitserve.frontend.offline.progress import GenerationBar
from splitserve.frontend.offline.runner import OfflineRunner, run_bounded
from splitserve.frontend.text.pooling.vectors import check_vector
from splitserve.frontend.text.prompts import Prompt

# Enough to keep the engine's batch full while results come back.
_IN_FLIGHT_PER_SEQ = 2
_MAX_IN_FLIGHT = 4096

Job = TypeVar("Job", bound=PromptJob | PairJob | ChatJob)
Out = TypeVar("Out", bound="RequestOutput | Pooled")


@dataclass(slots=True)
class Pooled:
    """What came of a prompt that was pooled: a float32 column."""

    request_id: str
    prompt_token_ids: list[int]
    values: bytes = b""
    num_cached_tokens: int = 0


class JobRunner:
    """Runs jobs on an engine; methods may be called from several threads.

    Attributes:
        max_in_flight: as many at once as fill the engine's batch twice.

    Args:
        runner: of the engine.
        served: its model.
        tells_metrics: outputs tell the times of their tokens.
    """

    def __init__(self, runner: OfflineRunner, served: ServedModel, *, tells_metrics: bool) -> None:
        self._runner = runner
        self._served = served
        self._tells_metrics = tells_metrics
        self.max_in_flight = min(_MAX_IN_FLIGHT, _IN_FLIGHT_PER_SEQ * served.max_num_seqs)
        self._lock = threading.Lock()
        self._num_requests = 0

    def run(
        self,
        jobs: Sequence[Job],
        use_tqdm: bool,
        run_job: Callable[[Job, GenerationBar], Coroutine[Any, Any, Out]],
    ) -> list[Out]:
        """Run jobs, at most as many at once as fill the engine's batch twice; their outputs in order.

        Args:
            jobs: of one call.
            use_tqdm: show a progress bar.
            run_job: makes the output of one of them.

        Raises:
            SplitServeError: the first failure; the other jobs are cancelled.
        """
        with GenerationBar(len(jobs), use_tqdm) as bar:

            async def run_one(job: Job) -> Out:
                output = await run_job(job, bar)
                bar.count_done(len(output.prompt_token_ids))
                return output

            return self._runner.run(run_bounded(jobs, run_one, self.max_in_flight), bar.show)

    def _request(
        self,
        job: PromptJob | PairJob | ChatJob,
        prompt: Prompt,
        *,
        pools: bool = False,
        at_once: bool = False,
        pools_tokens: bool = False,
    ) -> GenerationRequest:
        served, options = self._served, job.options
        with self._lock:
            self._num_requests += 1
            request_id = str(self._num_requests - 1)
        params = fit_context(options.params, len(prompt.token_ids), served.info.max_model_len)
        return GenerationRequest(
            request_id,
            prompt.token_ids,
            params,
            options.priority,
            # Tokens that come late and joined could not be timed.
            streams=at_once or self._can_be_timed(params),
            model=served.identity,
            grammar_context=job.grammar_context(served.assets, prompt),
            pools=pools,
            second_at=prompt.second_at,
            pools_tokens=pools_tokens,
        )

    def _can_be_timed(self, params: SamplingParams) -> bool:
        return self._tells_metrics and params.n == 1 and not params.use_beam_search

    async def generate(self, job: PromptJob | ChatJob, bar: GenerationBar) -> RequestOutput:
        """Generate the outputs of one prompt or conversation."""
        async with aclosing(self.stream(job, bar.count_tokens, at_once=False)) as outputs:
            async for output in outputs:
                if output.finished:
                    return output
        raise AssertionError("a stream without end")

    async def stream(
        self, job: PromptJob | ChatJob, on_tokens: Callable[[int], None], *, at_once: bool
    ) -> AsyncGenerator[RequestOutput, None]:
        """Generate the outputs of one prompt or conversation, yielding them whenever they have grown.

        Args:
            job: what to generate from.
            on_tokens: told how many tokens came.
            at_once: tokens are needed as soon as they are there, not some together.

        Yields:
            The same object each time, `finished` the last time.
        """
        served = self._served
        prompt = await job.encode(served.assets)
        request = self._request(job, prompt, at_once=at_once)
        params = request.sampling
        timed = self._can_be_timed(params)
        completions = [CompletionOutput(index) for index in range(params.n)]
        output = RequestOutput(request.request_id, prompt.text, prompt.token_ids, completions, finished=False)
        times = RequestTimes(time.monotonic())
        tokenizer = served.assets.tokenizer if params.detokenize else None
        async with aclosing(self._runner.generate(request, job.options.lora)) as deltas:
            async for delta in deltas:
                times.add(len(delta.token_ids), delta.queue_time_s, time.monotonic())
                collect_outputs(output, (delta,), tokenizer)
                on_tokens(len(delta.token_ids))
                yield output
        output.metrics = times.metrics() if timed else None
        output.finished = True
        yield output

    async def pool(self, job: PromptJob | PairJob, _: GenerationBar) -> Pooled:
        """Make the vector of one prompt, those of its tokens, or the numbers of its labels."""
        of_tokens = isinstance(job, PromptJob) and job.of_tokens
        prompt = await job.encode(self._served.assets)
        request = self._request(job, prompt, pools=True, pools_tokens=of_tokens)
        size = self._served.info.pooled_size * (len(prompt.token_ids) if of_tokens else 1)
        output = Pooled(request.request_id, request.prompt_token_ids)
        async with aclosing(self._runner.generate(request)) as deltas:
            async for delta in deltas:
                output.num_cached_tokens = delta.num_cached_tokens
                check_vector(delta.pooled, size)
                output.values = delta.pooled
        return output
