"""A model that a script asks: its engine-core process, and the options and runs of every call."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from splitserve.engine_core.errors import ConfigError
from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.engines.generation import POOLING_SAMPLING
from splitserve.frontend.engines.questions import check_sleep_level, check_wake_tags
from splitserve.frontend.offline.control.metrics import Metric, metrics_of
from splitserve.frontend.offline.job_runner import Job, JobRunner, Out, Pooled
from splitserve.frontend.offline.jobs import (
    ChatJob,
    JobOptions,
    PairJob,
    PromptJob,
    TokenizationKwargs,
    check_tokenization,
    list_prompts,
    read_conversations,
)
from splitserve.frontend.offline.outputs import PromptInput
from splitserve.frontend.offline.params import (
    check_adapters,
    check_params_of_all,
    check_priorities,
    params_of,
)
from splitserve.frontend.offline.pooling import PoolingCalls
from splitserve.frontend.offline.progress import GenerationBar, StartBar
from splitserve.frontend.offline.runner import OfflineRunner
from splitserve.frontend.text.chat.known_templates import find_template
from splitserve.frontend.text.chat.messages import Message
from splitserve.frontend.text.chat.options import ChatOptions
from splitserve.frontend.text.pooling.vectors import check_generates
from splitserve.frontend.unknown_fields import UnknownFields

_MAX_WAITING_TOKENS = 2**40


class OfflineModel:
    """One model in an engine-core process of its own, which ends with close() or when this is dropped.

    Attributes:
        runner: of the process.
        served: the model.
        jobs: runs what is asked of it.

    Args:
        flags: of the engine, besides those that every script wants.
        chat_template: name or file of the template; "" is the checkpoint's.
        max_logprobs: largest number of logprobs that may be asked for per token.
        tells_metrics: outputs tell the times of their tokens.
        use_tqdm: show the progress of loading.
        startup_timeout_s: longest wait for the model.

    Raises:
        SplitServeError: as LLM.
    """

    def __init__(
        self,
        flags: Sequence[str],
        *,
        chat_template: str,
        max_logprobs: int,
        tells_metrics: bool,
        use_tqdm: bool,
        startup_timeout_s: float,
    ) -> None:
        if chat_template:
            find_template(chat_template)
        self._max_logprobs = max_logprobs
        # A script has no --strict.
        self._unknown_fields = UnknownFields(strict=False, level=logging.WARNING)
        flags = [
            *flags,
            "--engine-id=offline",
            "--drain-timeout=0",
            # Nobody reads along: throughput counts, and how much waits is bounded here.
            "--target-itl-ms=0",
            f"--max-waiting-tokens={_MAX_WAITING_TOKENS}",
            "--log-wait=0",
        ]
        self.startup_timeout_s = startup_timeout_s
        self.runner = OfflineRunner()
        # Also runs when the interpreter ends. A forked child must not end its parent's engine.
        self._finalizer = weakref.finalize(self, _close, self.runner, os.getpid())
        try:
            with StartBar(use_tqdm) as bar:
                self.served = self.runner.start(flags, startup_timeout_s, bar.show, chat_template)
        except BaseException:
            self.close()
            raise
        self.jobs = JobRunner(self.runner, self.served, tells_metrics=tells_metrics)

    def options(
        self,
        params: SamplingParams | Sequence[SamplingParams],
        priority: int | Sequence[int] | None,
        tokenization_kwargs: TokenizationKwargs | None,
        count: int,
        lora: str | Sequence[str | None] | None = None,
    ) -> list[JobOptions]:
        """Return the checked options of each of `count` prompts.

        Raises:
            InvalidRequestError: one is wrong.
        """
        tokenization = check_tokenization(tokenization_kwargs)
        checked = check_params_of_all(params, count, self.served.info.vocab_size, self._max_logprobs)
        each_of = zip(checked, check_priorities(priority, count), check_adapters(lora, count), strict=True)
        return [JobOptions(params, priority, tokenization, name) for params, priority, name in each_of]

    def default_params(self) -> SamplingParams:
        """Return what generation_config.json says."""
        return params_of(self.served.assets.sampling_defaults)

    def prompt_jobs(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: SamplingParams | Sequence[SamplingParams] | None,
        priority: int | Sequence[int] | None,
        tokenization_kwargs: TokenizationKwargs | None,
        lora: str | Sequence[str | None] | None,
    ) -> list[PromptJob]:
        """Return a job for each prompt; the arguments are those of LLM.generate.

        Raises:
            InvalidRequestError: one is wrong, or the model generates no text.
        """
        check_generates(self.served.names[0], self.served.info)
        many = list_prompts(prompts)
        given = self.default_params() if params is None else params
        options = self.options(given, priority, tokenization_kwargs, len(many), lora)
        return [PromptJob(prompt, each) for prompt, each in zip(many, options, strict=True)]

    def chat_jobs(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None,
        template_options: ChatOptions,
        priority: int | Sequence[int] | None,
        tokenization_kwargs: TokenizationKwargs | None,
        lora: str | Sequence[str | None] | None,
    ) -> list[ChatJob]:
        """Return a job for each conversation; the arguments are those of LLM.chat.

        Raises:
            InvalidRequestError: one is wrong, or the model generates no text.
        """
        check_generates(self.served.names[0], self.served.info)
        many = read_conversations(messages, self._unknown_fields)
        given = self.default_params() if params is None else params
        options = self.options(given, priority, tokenization_kwargs, len(many), lora)
        return [ChatJob(chat, each, template_options) for chat, each in zip(many, options, strict=True)]

    def run(
        self,
        jobs: Sequence[Job],
        use_tqdm: bool,
        run_job: Callable[[Job, GenerationBar], Coroutine[Any, Any, Out]],
    ) -> list[Out]:
        """Run jobs; see JobRunner.run.

        Raises:
            ConfigError: it is closed.
        """
        self.check_open()
        return self.jobs.run(jobs, use_tqdm, run_job)

    def check_open(self) -> None:
        """Refuse a closed one; raises ConfigError."""
        if not self._finalizer.alive:
            raise ConfigError("this LLM is closed")

    def reset_prefix_cache(self) -> None:
        """Let the engine forget its cached prefixes; see LLM.reset_prefix_cache()."""
        self.check_open()
        self.runner.run(self.runner.reset_prefix_cache())

    def sleep(self, level: int) -> None:
        """Let the engine give up its memory; see LLM.sleep()."""
        check_sleep_level(level)
        self.check_open()
        self.runner.run(self.runner.sleep(level))

    def wake_up(self, tags: Sequence[str] | None) -> None:
        """Let the engine take it again; see LLM.wake_up()."""
        check_wake_tags(tags)
        self.check_open()
        self.runner.run(self.runner.wake_up(self.startup_timeout_s))

    def metrics(self) -> list[Metric]:
        """Return the engine's figures; see LLM.get_metrics()."""
        self.check_open()
        return metrics_of(self.runner.run(self.runner.fresh_status()))

    def pool(
        self,
        use_tqdm: bool,
        priority: int | Sequence[int] | None,
        tokenization_kwargs: TokenizationKwargs | None,
    ) -> PoolingCalls:
        """Return the calls of a model that generates nothing, with what they all take."""

        def options(count: int) -> list[JobOptions]:
            return self.options(POOLING_SAMPLING, priority, tokenization_kwargs, count)

        def run(jobs: Sequence[PromptJob | PairJob]) -> list[Pooled]:
            return self.run(jobs, use_tqdm, self.jobs.pool)

        return PoolingCalls(self.served, options, run)

    def close(self) -> None:
        """End the engine; safe to call twice."""
        self._finalizer()


def _close(runner: OfflineRunner, owner_pid: int) -> None:
    if os.getpid() == owner_pid:
        runner.close()
