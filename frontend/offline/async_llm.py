"""AsyncLLM: a model in an asyncio program, without HTTP, on an engine-core process of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType

from splitserve.engine_core.errors import ConfigError, InvalidRequestError
from splitserve.engine_core.near_names import names_near_keywords
from splitserve.engine_core.sampling_params import MAX_LOGPROBS, SamplingParams
from splitserve.engine_core.sequence_sampling import MAX_STEP_LOGPROBS
from splitserve.engine_core.settings.checks import check_range
from splitserve.frontend.engines.questions import DEFAULT_SLEEP_LEVEL, check_sleep_level, check_wake_tags
from splitserve.frontend.offline.control.beam_search import BeamSearchOutput, BeamSearchParams, beam_output
from splitserve.frontend.offline.control.metrics import Metric, metrics_of
from splitserve.frontend.offline.engine_keywords import Given, engine_keywords, engine_words, shows_keywords
from splitserve.frontend.offline.jobs import ChatJob, PromptJob, TokenizationKwargs
from splitserve.frontend.offline.offline_model import OfflineModel
from splitserve.frontend.offline.open_streams import OpenStreams
from splitserve.frontend.offline.outputs import PromptInput, RequestOutput
from splitserve.frontend.text.chat.control_tokens import JsonValue
from splitserve.frontend.text.chat.known_templates import find_template
from splitserve.frontend.text.chat.messages import Message
from splitserve.frontend.text.chat.options import ChatOptions
from splitserve.frontend.text.tokenizer import Tokenizer

_ENGINE_KEYWORDS = engine_keywords()


class AsyncLLM:
    """Generates text from prompts and conversations, each streamed while it is generated.

        async with AsyncLLM() as llm:
            async for output in llm.generate("Once", SamplingParams(max_tokens=8)):
                print(output.outputs[0].text)

    Starts an engine-core process in `async with`, or with start(), and ends it as LLM does. Its methods may
    be called on any event loop, several at a time, and on several threads.

    Args:
        model: as for LLM, as are all others.

    Raises:
        ConfigError: an argument is out of range.
    """

    @names_near_keywords("AsyncLLM")
    @shows_keywords(_ENGINE_KEYWORDS)
    def __init__(
        self,
        model: str = "",
        *,
        chat_template: str = "",
        max_logprobs: int = MAX_LOGPROBS,
        enable_per_request_metrics: bool = False,
        log_level: str = "warning",
        use_tqdm: bool = True,
        startup_timeout_s: float = 600.0,
        **settings: Given,
    ) -> None:
        """Check the arguments; see the class."""
        check_range("max_logprobs", max_logprobs, 0, MAX_STEP_LOGPROBS)
        words = engine_words(_ENGINE_KEYWORDS, settings)
        self._flags = [f"--model={model}", *words, f"--log-level={log_level}"]
        if chat_template:
            find_template(chat_template)
        self._chat_template = chat_template
        self._max_logprobs = max_logprobs
        self._tells_metrics = enable_per_request_metrics
        self._use_tqdm = use_tqdm
        self._startup_timeout_s = startup_timeout_s
        self._model: OfflineModel | None = None
        self._streams: OpenStreams | None = None
        self._numbers = itertools.count()

    async def start(self) -> None:
        """Start the engine and wait until the model is loaded, not keeping the event loop.

        Raises:
            ConfigError: it is started already, or a setting is wrong.
            ModelLoadError: the model cannot be served.
            EngineUnavailableError: the engine ended or was not ready in time.
        """
        if self._model is not None:
            raise ConfigError("this AsyncLLM is started already")
        starting = asyncio.ensure_future(asyncio.to_thread(self._make))
        try:
            model = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_close_made)
            raise
        self._model = model
        self._streams = OpenStreams(model.runner, model.jobs)

    @names_near_keywords("AsyncLLM.generate")
    def generate(
        self,
        prompt: PromptInput,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int | None = None,
        tokenization_kwargs: TokenizationKwargs | None = None,
        lora: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete a prompt.

        Args:
            prompt: a text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}.
            sampling_params: None takes get_default_sampling_params().
            request_id: for abort(), and the output's; none that is open. None makes one up.
            priority: lower first; counts with scheduling_policy="priority".
            tokenization_kwargs: as for LLM.generate.
            lora: name of an adapter that was given to the AsyncLLM; None for none.

        Returns:
            A stream of outputs, each with all that was generated so far; the last one is `finished`. If it is
            closed before, the request is aborted. A reader that is slow gets fewer outputs, not older ones.

        Raises:
            InvalidRequestError: a prompt or parameter is wrong; raised at once, or by the stream.
            SplitServeError: by the stream: the engine failed; its words are quoted.
        """
        jobs = self._started().prompt_jobs(prompt, sampling_params, priority, tokenization_kwargs, lora)
        return self._stream(jobs, request_id, "prompt")

    @names_near_keywords("AsyncLLM.chat")
    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, JsonValue]] | None = None,
        chat_template_kwargs: Mapping[str, JsonValue] | None = None,
        priority: int | None = None,
        tokenization_kwargs: TokenizationKwargs | None = None,
        lora: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer a conversation; arguments as for LLM.chat, stream and errors as for generate()."""
        template_options = ChatOptions(
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            variables=chat_template_kwargs,
        )
        jobs = self._started().chat_jobs(
            messages, sampling_params, template_options, priority, tokenization_kwargs, lora
        )
        return self._stream(jobs, request_id, "messages")

    @names_near_keywords("AsyncLLM.beam_search")
    async def beam_search(
        self, prompt: PromptInput, params: BeamSearchParams, *, lora: str | None = None
    ) -> BeamSearchOutput:
        """Search for the outputs with the highest scores; arguments and errors as for LLM.beam_search."""
        async with aclosing(self.generate(prompt, params.sampling_params(), lora=lora)) as outputs:
            async for output in outputs:
                if output.finished:
                    return beam_output(output, self.get_tokenizer())
        raise AssertionError("a stream without end")

    async def get_metrics(self) -> list[Metric]:
        """Return the engine's figures as they are now; see LLM.get_metrics()."""
        runner = self._started().runner
        return metrics_of(await asyncio.wrap_future(runner.submit(runner.fresh_status())))

    async def sleep(self, level: int = DEFAULT_SLEEP_LEVEL) -> None:
        """Give up the memory of the KV cache, or of the weights too, until wake_up(); see LLM.sleep()."""
        check_sleep_level(level)
        runner = self._started().runner
        await asyncio.wrap_future(runner.submit(runner.sleep(level)))

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take the memory again, and return once the engine serves; see LLM.wake_up()."""
        check_wake_tags(tags)
        runner = self._started().runner
        await asyncio.wrap_future(runner.submit(runner.wake_up(self._startup_timeout_s)))

    def abort(self, request_id: str | Sequence[str]) -> None:
        """End requests; their streams end with an output whose finish_reason is "abort", if anything came.

        Ids that are not open are ignored.
        """
        self._started()
        assert self._streams is not None
        for each in [request_id] if isinstance(request_id, str) else request_id:
            self._streams.abort(each)

    async def reset_prefix_cache(self) -> bool:
        """Let nobody find any prefix in the cache that is there now; what runs goes on. Always True.

        Raises:
            SplitServeError: the engine failed, or does not answer.
        """
        runner = self._started().runner
        await asyncio.wrap_future(runner.submit(runner.reset_prefix_cache()))
        return True

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self._started().served.assets.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return what generation_config.json says; `do_sample: false` there is temperature 0 here."""
        return self._started().default_params()

    async def close(self) -> None:
        """End the engine; open streams end with an error. Safe to call twice."""
        if self._model is not None:
            assert self._streams is not None
            self._streams.end_all(ConfigError("this AsyncLLM is closed"))
            await asyncio.to_thread(self._model.close)

    async def __aenter__(self) -> AsyncLLM:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _make(self) -> OfflineModel:
        return OfflineModel(
            self._flags,
            chat_template=self._chat_template,
            max_logprobs=self._max_logprobs,
            tells_metrics=self._tells_metrics,
            use_tqdm=self._use_tqdm,
            startup_timeout_s=self._startup_timeout_s,
        )

    def _started(self) -> OfflineModel:
        if self._model is None:
            raise ConfigError("this AsyncLLM is not started: use it in `async with`, or await start()")
        self._model.check_open()
        return self._model

    def _stream(
        self, jobs: Sequence[PromptJob | ChatJob], request_id: str | None, name: str
    ) -> AsyncGenerator[RequestOutput, None]:
        if len(jobs) != 1:
            raise InvalidRequestError(f"{name}: one at a time, got {len(jobs)}", name)
        assert self._streams is not None
        return self._streams.stream(jobs[0], request_id or f"async-{next(self._numbers)}")


def _close_made(starting: asyncio.Future[OfflineModel]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().close()
