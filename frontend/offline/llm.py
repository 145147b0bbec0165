"""The offline LLM class: a model in a Python script, without HTTP, on an engine-core process of its own."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import msgspec

from splitserve.engine_core.errors import ConfigError, InvalidRequestError
from splitserve.engine_core.near_names import names_near_keywords
from splitserve.engine_core.sampling_params import MAX_LOGPROBS, SamplingParams
from splitserve.engine_core.sequence_sampling import MAX_STEP_LOGPROBS
from splitserve.engine_core.settings.checks import check_range
from splitserve.engine_core.settings.setting import Value
from splitserve.frontend.engines.generation import POOLING_SAMPLING
from splitserve.frontend.offline.engine_keywords import engine_keywords, engine_words, shows_keywords
from splitserve.frontend.offline.job_runner import Job, JobRunner, Out, VectorShape
from splitserve.frontend.offline.jobs import (
    ChatJob,
    JobOptions,
    PromptJob,
    TokenizationKwargs,
    check_tokenization,
    list_prompts,
    read_conversations,
)
from splitserve.frontend.offline.outputs import EmbeddingRequestOutput, PromptInput, RequestOutput
from splitserve.frontend.offline.params import check_params_of_all, check_priorities
from splitserve.frontend.offline.progress import GenerationBar, StartBar
from splitserve.frontend.offline.runner import OfflineRunner
from splitserve.frontend.text.chat.control_tokens import JsonValue
from splitserve.frontend.text.chat.messages import Message
from splitserve.frontend.text.chat.options import ChatOptions
from splitserve.frontend.text.tokenizer import Tokenizer
from splitserve.frontend.text.vectors import check_dimensions, check_embeds
from splitserve.frontend.unknown_fields import UnknownFields

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
        self._jobs = JobRunner(self._runner, self._served, tells_metrics=enable_per_request_metrics)
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
        return self._run(jobs, use_tqdm, self._jobs.generate)

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
        return self._run(jobs, use_tqdm, self._jobs.generate)

    @names_near_keywords("LLM.embed")
    def embed(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        *,
        use_tqdm: bool = True,
        dimensions: int | None = None,
        normalize: bool | None = None,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: TokenizationKwargs | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Make vectors of prompts; the model is one for embeddings, or was started with task="embed".

        Args:
            prompts: as for generate().
            use_tqdm: show a progress bar.
            dimensions: elements kept of each vector; None keeps all.
            normalize: bring vectors to length 1; None does what the checkpoint says, and does it if it says
                nothing.
            priority: as for generate().
            tokenization_kwargs: as for generate().

        Returns:
            One output per prompt, in their order, its vector in `outputs.embedding`.

        Raises:
            InvalidRequestError: the model generates text, or a prompt or argument is wrong.
            SplitServeError: the engine failed; its words are quoted.
        """
        info = self._served.info
        check_embeds(self._served.names[0], info.embedding_size)
        size = check_dimensions(dimensions, info.embedding_size)
        if normalize is not None and not isinstance(normalize, bool):
            raise InvalidRequestError(
                f"normalize must be True, False or None, got {normalize!r}", "normalize"
            )
        many = list_prompts(prompts)
        options = self._options(POOLING_SAMPLING, priority, tokenization_kwargs, len(many))
        jobs = [PromptJob(prompt, each) for prompt, each in zip(many, options, strict=True)]
        shape = VectorShape(info.embedding_size, size, info.normalizes if normalize is None else normalize)
        return self._run(jobs, use_tqdm, partial(self._jobs.embed, shape=shape))

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
        if params is None:
            params = self.get_default_sampling_params()
        tokenization = check_tokenization(tokenization_kwargs)
        vocab_size = self._served.info.vocab_size
        checked = check_params_of_all(params, count, vocab_size, self._max_logprobs)
        pairs = zip(checked, check_priorities(priority, count), strict=True)
        return [JobOptions(each, priority, tokenization) for each, priority in pairs]

    def _run(
        self,
        jobs: Sequence[Job],
        use_tqdm: bool,
        run_job: Callable[[Job, GenerationBar], Coroutine[Any, Any, Out]],
    ) -> list[Out]:
        if not self._finalizer.alive:
            raise ConfigError("this LLM is closed")
        return self._jobs.run(jobs, use_tqdm, run_job)


def _close(runner: OfflineRunner, owner_pid: int) -> None:
    if os.getpid() == owner_pid:
        runner.close()
