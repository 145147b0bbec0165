"""The offline LLM class: a model in a Python script, without HTTP, on an engine-core process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from splitserve.engine_core.near_names import names_near_keywords
from splitserve.engine_core.sampling_params import MAX_LOGPROBS, SamplingParams
from splitserve.engine_core.sequence_sampling import MAX_STEP_LOGPROBS
from splitserve.engine_core.settings.checks import check_range
from splitserve.frontend.offline.control.beam_search import BeamSearchOutput, BeamSearchParams, beam_output
from splitserve.frontend.offline.control.llm_control import LLMControl
from splitserve.frontend.offline.engine_keywords import (
    Given,
    engine_keywords,
    engine_words,
    shows_keywords,
)
from splitserve.frontend.offline.jobs import TokenizationKwargs
from splitserve.frontend.offline.offline_model import OfflineModel
from splitserve.frontend.offline.outputs import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingRequestOutput,
    PromptInput,
    RankedDocument,
    RequestOutput,
    ScoringRequestOutput,
)
from splitserve.frontend.offline.pooling import PoolingTask
from splitserve.frontend.text.chat.control_tokens import JsonValue
from splitserve.frontend.text.chat.messages import Message
from splitserve.frontend.text.chat.options import ChatOptions

_ENGINE_KEYWORDS = engine_keywords()


class LLM(LLMControl):
    """Generates text from prompts and conversations.

    Starts an engine-core process and ends it with close(), at the end of a `with` block, when the object is
    dropped, and at the end of the script however that comes. Methods may be called from several threads.

    Args:
        model: checkpoint directory, GGUF file, or Hugging Face id; "" is the demo model of the package.
        chat_template: name of a known format or jinja2 file; "" is the checkpoint's.
        max_logprobs: largest number of logprobs that sampling_params may ask for per token, 0 to 160.
        enable_per_request_metrics: tell the times of its tokens in each output, at some cost.
        log_level: least severe message of the engine to show.
        use_tqdm: show the progress of loading.
        startup_timeout_s: longest wait for the model.
        settings: flags of engine-core; help(LLM.__init__) and docs/offline.md list them.

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
        chat_template: str = "",
        max_logprobs: int = MAX_LOGPROBS,
        enable_per_request_metrics: bool = False,
        log_level: str = "warning",
        use_tqdm: bool = True,
        startup_timeout_s: float = 600.0,
        **settings: Given,
    ) -> None:
        """Start the engine and wait until the model is loaded; see the class."""
        check_range("max_logprobs", max_logprobs, 0, MAX_STEP_LOGPROBS)
        super().__init__(
            OfflineModel(
                [f"--model={model}", *engine_words(_ENGINE_KEYWORDS, settings), f"--log-level={log_level}"],
                chat_template=chat_template,
                max_logprobs=max_logprobs,
                tells_metrics=enable_per_request_metrics,
                use_tqdm=use_tqdm,
                startup_timeout_s=startup_timeout_s,
            )
        )

    @names_near_keywords("LLM.generate")
    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: TokenizationKwargs | None = None,
        lora: str | Sequence[str | None] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts.

        Args:
            prompts: one or many; each a text, a list of token ids, {"prompt": text} or
                {"prompt_token_ids": ids}. Control tokens in texts are read as such; `chat` keeps them apart.
            sampling_params: one for all or one per prompt; None takes get_default_sampling_params().
            use_tqdm: show a progress bar.
            priority: one for all or one per prompt, lower first; counts with scheduling_policy="priority".
            tokenization_kwargs: truncate_prompt_tokens, truncation_side and add_special_tokens.
            lora: name of an adapter that was given to the LLM, one for all or one per prompt; None for none.

        Returns:
            One output per prompt, in their order.

        Raises:
            InvalidRequestError: a prompt or parameter is wrong; nothing else is generated either.
            SplitServeError: the engine failed; its words are quoted.
        """
        jobs = self._model.prompt_jobs(prompts, sampling_params, priority, tokenization_kwargs, lora)
        return self._model.run(jobs, use_tqdm, self._model.jobs.generate)

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
        lora: str | Sequence[str | None] | None = None,
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
            lora: as for generate().

        Returns:
            One output per conversation, in their order; `prompt` is the rendered text.

        Raises:
            InvalidRequestError: the model has no chat template, or it refuses the messages.
            SplitServeError: the engine failed; its words are quoted.
        """
        options = ChatOptions(
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            variables=chat_template_kwargs,
        )
        jobs = self._model.chat_jobs(messages, sampling_params, options, priority, tokenization_kwargs, lora)
        return self._model.run(jobs, use_tqdm, self._model.jobs.generate)

    @names_near_keywords("LLM.beam_search")
    def beam_search(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: BeamSearchParams,
        *,
        use_tqdm: bool = False,
        lora: str | Sequence[str | None] | None = None,
    ) -> list[BeamSearchOutput]:
        """Search for the outputs with the highest scores; see generate() for prompts, lora and errors.

        Returns:
            One output per prompt, in their order; its `sequences` come best first, prompts included.
        """
        outputs = self.generate(prompts, params.sampling_params(), use_tqdm, lora=lora)
        return [beam_output(each, self.get_tokenizer()) for each in outputs]

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

        `dimensions` elements of each vector are kept, None keeps all. `normalize` brings vectors to length 1;
        None does so unless the checkpoint says otherwise. Other arguments are those of generate().

        Returns:
            One output per prompt, in their order, its vector in `outputs.embedding`.

        Raises:
            InvalidRequestError: the model does something else, or a prompt or argument is wrong.
            SplitServeError: the engine failed; its words are quoted.
        """
        return self._model.pool(use_tqdm, priority, tokenization_kwargs).embed(prompts, dimensions, normalize)

    @names_near_keywords("LLM.classify")
    def classify(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: TokenizationKwargs | None = None,
    ) -> list[ClassificationRequestOutput]:
        """Tell how probable the labels of prompts are; the model is one with a head for labels.

        Arguments and errors are those of embed(). Each output has `outputs.probs` and `outputs.label`.
        """
        return self._model.pool(use_tqdm, priority, tokenization_kwargs).classify(prompts)

    @names_near_keywords("LLM.score")
    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        *,
        instruction: str | None = None,
        use_tqdm: bool = True,
        priority: int | None = None,
        tokenization_kwargs: TokenizationKwargs | None = None,
    ) -> list[ScoringRequestOutput]:
        """Score pairs of texts: a cross-encoder reads both at once, of other models vectors are compared.

        `data_1` is one text, or as many as `data_2` has. `instruction` is what a model judges by that is told
        so, None its own. Other arguments and errors are those of embed(); the longer text of a pair is cut,
        at its end unless truncation_side is "left". Each text of `data_2` has an output with `outputs.score`.
        """
        return self._model.pool(use_tqdm, priority, tokenization_kwargs).score(data_1, data_2, instruction)

    @names_near_keywords("LLM.rerank")
    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        instruction: str | None = None,
        use_tqdm: bool = True,
        priority: int | None = None,
        tokenization_kwargs: TokenizationKwargs | None = None,
    ) -> list[RankedDocument]:
        """Order documents by their scores with a query, the best first; see score().

        `top_n` says how many are returned, None all of them.
        """
        return self._model.pool(use_tqdm, priority, tokenization_kwargs).rerank(
            query, documents, top_n, instruction
        )

    @names_near_keywords("LLM.encode")
    def encode(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        *,
        pooling_task: PoolingTask | None = None,
        use_tqdm: bool = True,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: TokenizationKwargs | None = None,
    ) -> list[PoolingRequestOutput]:
        """Make of prompts what the model makes: vectors, as embed(), or probabilities, as classify().

        `pooling_task` is "embed", "classify", "token_embed" (the vector of each token, by encoders), or None.
        Each output has a float32 array in `outputs.data`, [n] or [tokens, n].
        """
        return self._model.pool(use_tqdm, priority, tokenization_kwargs).encode(prompts, pooling_task)
