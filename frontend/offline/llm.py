"""The offline LLM class: a model in a Python script, without HTTP, on an engine-core process of its own."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from types import TracebackType

import msgspec

from splitserve.engine_core.errors import ConfigError, InvalidRequestError
from splitserve.engine_core.near_names import names_near_keywords
from splitserve.engine_core.sampling_params import MAX_LOGPROBS, SamplingParams
from splitserve.engine_core.sequence_sampling import MAX_STEP_LOGPROBS
from splitserve.engine_core.settings.checks import check_range
from splitserve.engine_core.settings.setting import Value
from splitserve.frontend.engines.generation import GenerationRequest
from splitserve.frontend.metrics.request_metrics import RequestTimes
from splitserve.frontend.offline.engine_keywords import engine_keywords, engine_words, shows_keywords
from splitserve.frontend.offline.jobs import (
    ChatJob,
    JobOptions,
    PromptJob,
    TokenizationKwargs,
    check_tokenization,
    list_items,
    list_prompts,
    read_conversations,
)
from splitserve.frontend.offline.outputs import CompletionOutput, PromptInput, RequestOutput, collect_outputs
from splitserve.frontend.offline.params import check_params, check_priorities, fit_context
from splitserve.frontend.offline.progress import GenerationBar, StartBar
from splitserve.frontend.offline.runner import OfflineRunner, run_bounded
from splitserve.frontend.text.chat.control_tokens import JsonValue
from splitserve.frontend.text.chat.messages import Message
from splitserve.frontend.text.chat.options import ChatOptions
from splitserve.frontend.text.tokenizer import Tokenizer
from splitserve.frontend.unknown_fields import UnknownFields

# Enough to keep the engine's batch full while results come back.
_IN_FLIGHT_PER_SEQ = 2
_MAX_IN_FLIGHT = 4096
_MAX_WAITING_TOKENS = 2**40
_ENGINE_KEYWORDS = engine_keywords()


class LLM:
    """Generates text from prompts and conversations.

    Starts an engine-core process and ends it with close(), at the end of a `with` block, when the object is
    dropped, and at the end of the script however that comes. Methods may be called from several threads.

    Args:
        model: checkpoint directory or Hugging Face id; "" is the demo model that ships with the package.
        max_logprobs: largest number of logprobs that sampling_params may ask for per token, 0 to 160.
        enable_per_request_metrics: tell the times of its tokens in each output, at some cost.
        log_level: least severe message of the engine to show.
        use_tqdm: show the progress of loading.
        startup_timeout_s: longest wait for the model.
        settings: of the engine, as the flags of engine-core of the same names; help(LLM.__init__) and
            docs/offline.md list them.

    Raises:
        ConfigError: an argument is out of range.
        ModelLoadError: the model cannot be served.
        EngineUnavailableError: the engine ended or was not ready in time.
    """

    @names_near_keywords("LLM")
    @shows_keywords(_ENGINE_KEYWORDS)
    def __init__(
        self,
        model: str = "",
        *,
        max_logprobs: int = MAX_LOGPROBS,
        enable_per_request_metrics: bool = False,
        log_level: str = "warning",
        use_tqdm: bool = True,
        startup_timeout_s: float = 600.0,
        **settings: Value,
    ) -> None:
        """Start the engine and wait until the model is loaded; see the class."""
        check_range("max_logprobs", max_logprobs, 0, MAX_STEP_LOGPROBS)
        self._max_logprobs = max_logprobs
        self._tells_metrics = enable_per_request_metrics
        flags = [
            f"--model={model}",
            *engine_words(_ENGINE_KEYWORDS, settings),
            f"--log-level={log_level}",
            "--engine-id=offline",
            "--drain-timeout=0",
            # Nobody reads along: throughput counts, and how much waits is bounded here.
            "--target-itl-ms=0",
            f"--max-waiting-tokens={_MAX_WAITING_TOKENS}",
            "--log-wait=0",
        ]
        self._runner = OfflineRunner()
        # Also runs when the interpreter ends. A forked child must not end its parent's engine.
        self._finalizer = weakref.finalize(self, _close, self._runner, os.getpid())
        try:
            with StartBar(use_tqdm) as bar:
                self._served = self._runner.start(flags, startup_timeout_s, bar.show)
        except BaseException:
            self.close()
            raise
        self._max_in_flight = min(_MAX_IN_FLIGHT, _IN_FLIGHT_PER_SEQ * self._served.max_num_seqs)
        self._lock = threading.Lock()
        self._num_requests = 0
        # A script has no --strict, and seldom shows what is less than a warning.
        self._unknown_fields = UnknownFields(strict=False, level=logging.WARNING)

    @names_near_keywords("LLM.generate")
    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: TokenizationKwargs | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts.

        Args:
            prompts: one or many; each a text, a list of token ids, {"prompt": text} or
                {"prompt_token_ids": ids}. Control tokens in texts ("<|im_end|>") are read as such: whoever
                calls this trusts the text. `chat` keeps them apart.
            sampling_params: one for all or one per prompt; None takes get_default_sampling_params().
            use_tqdm: show a progress bar.
            priority: one for all or one per prompt, lower first; counts with scheduling_policy="priority".
            tokenization_kwargs: truncate_prompt_tokens, truncation_side and add_special_tokens.

        Returns:
            One output per prompt, in their order.

        Raises:
            InvalidRequestError: a prompt or parameter is wrong; nothing else is generated either.
            SplitServeError: the engine failed; its words are quoted.
        """
        many = list_prompts(prompts)
        options = self._options(sampling_params, priority, tokenization_kwargs, len(many))
        jobs = [PromptJob(prompt, each) for prompt, each in zip(many, options, strict=True)]
        return self._run(jobs, use_tqdm)

    @names_near_keywords("LLM.chat")
    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, JsonValue]] | None = None,
        chat_template_kwargs: Mapping[str, JsonValue] | None = None,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: TokenizationKwargs | None = None,
    ) -> list[RequestOutput]:
        """Answer conversations, rendered by the model's chat template.

        Args:
            messages: one conversation, or a list of them; {"role": ..., "content": ...} each.
            sampling_params: one for all or one per conversation; None takes get_default_sampling_params().
            use_tqdm: show a progress bar.
            add_generation_prompt: open the assistant's turn.
            continue_final_message: go on with the last message instead of answering it.
            tools: JSON schemas of functions for the template.
            chat_template_kwargs: further template variables.
            priority: as for generate().
            tokenization_kwargs: as for generate(); add_special_tokens is off unless it says otherwise.

        Returns:
            One output per conversation, in their order; `prompt` is the rendered text.

        Raises:
            InvalidRequestError: the model has no chat template, or it refuses the messages.
            SplitServeError: the engine failed; its words are quoted.
        """
        many = read_conversations(messages, self._unknown_fields)
        template_options = ChatOptions(
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            variables=chat_template_kwargs,
        )
        options = self._options(sampling_params, priority, tokenization_kwargs, len(many))
        jobs = [ChatJob(chat, each, template_options) for chat, each in zip(many, options, strict=True)]
        return self._run(jobs, use_tqdm)

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self._served.assets.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return SamplingParams with the values that the checkpoint's generation_config.json names.

        If it says `do_sample: false`, temperature is 0.
        """
        defaults = self._served.assets.sampling_defaults
        named = {key: value for key, value in msgspec.structs.asdict(defaults).items() if value is not None}
        if (max_tokens := named.pop("max_new_tokens", None)) is not None:
            named["max_tokens"] = max_tokens
        return msgspec.structs.replace(SamplingParams(), **named)

    def close(self) -> None:
        """End the engine; safe to call twice. Nothing can be generated afterwards."""
        self._finalizer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _options(
        self,
        params: SamplingParams | Sequence[SamplingParams] | None,
        priority: int | Sequence[int] | None,
        tokenization_kwargs: TokenizationKwargs | None,
        count: int,
    ) -> list[JobOptions]:
        """Return the checked options of each prompt."""
        tokenization = check_tokenization(tokenization_kwargs)
        pairs = zip(self._params(params, count), check_priorities(priority, count), strict=True)
        return [JobOptions(each, priority, tokenization) for each, priority in pairs]

    def _params(
        self, given: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        """Return one checked SamplingParams per prompt."""
        if given is None:
            given = self.get_default_sampling_params()
        vocab_size = self._served.info.vocab_size
        if isinstance(given, SamplingParams):
            return [check_params(given, vocab_size, self._max_logprobs)] * count
        many = list_items(given, "sampling_params", "a SamplingParams or a list of them")
        params = [check_params(each, vocab_size, self._max_logprobs) for each in many]
        if len(params) != count:
            raise InvalidRequestError(f"{count} prompts require one sampling_params each, got {len(params)}")
        return params

    def _run(self, jobs: Sequence[PromptJob | ChatJob], use_tqdm: bool) -> list[RequestOutput]:
        if not self._finalizer.alive:
            raise ConfigError("this LLM is closed")
        with GenerationBar(len(jobs), use_tqdm) as bar:

            async def run_one(job: PromptJob | ChatJob) -> RequestOutput:
                output = await self._run_one(job, bar)
                bar.count_done(len(output.prompt_token_ids))
                return output

            return self._runner.run(run_bounded(jobs, run_one, self._max_in_flight), bar.show)

    async def _run_one(self, job: PromptJob | ChatJob, bar: GenerationBar) -> RequestOutput:
        served, options = self._served, job.options
        prompt = await job.encode(served.assets)
        token_ids = prompt.token_ids
        with self._lock:
            self._num_requests += 1
            request_id = str(self._num_requests - 1)
        completions = [CompletionOutput(index) for index in range(options.params.n)]
        output = RequestOutput(request_id, prompt.text, token_ids, completions)
        params = fit_context(options.params, len(token_ids), served.info.max_model_len)
        timed = self._tells_metrics and params.n == 1 and not params.use_beam_search
        # Tokens that come late and joined could not be timed.
        request = GenerationRequest(
            request_id,
            token_ids,
            params,
            options.priority,
            streams=timed,
            model=served.identity,
            grammar_context=job.grammar_context(served.assets, prompt),
        )
        times = RequestTimes(time.monotonic())
        tokenizer = served.assets.tokenizer if params.detokenize else None
        async with aclosing(self._runner.generate(request)) as deltas:
            async for delta in deltas:
                times.add(len(delta.token_ids), delta.queue_time_s, time.monotonic())
                collect_outputs(output, (delta,), tokenizer)
                bar.count_tokens(len(delta.token_ids))
        output.metrics = times.metrics() if timed else None
        return output


def _close(runner: OfflineRunner, owner_pid: int) -> None:
    if os.getpid() == owner_pid:
        runner.close()
