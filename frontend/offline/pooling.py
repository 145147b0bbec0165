"""What a script asks of a model that makes vectors, or numbers of labels: checked, run and finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.frontend.engines.served_model import ServedModel
from splitserve.frontend.offline.job_runner import Pooled
from splitserve.frontend.offline.jobs import JobOptions, PairJob, PromptJob, list_items, list_prompts
from splitserve.frontend.offline.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    PromptInput,
    RankedDocument,
    ScoringOutput,
    ScoringRequestOutput,
)
from splitserve.frontend.text.pooling.labels import (
    check_classifies,
    is_cross_encoder,
    probabilities_of,
    score_of,
)
from splitserve.frontend.text.pooling.vectors import (
    check_dimensions,
    check_embeds,
    check_embeds_tokens,
    cosines,
    finished_vector,
    token_vectors,
)

PoolingTask = Literal["embed", "classify", "token_embed"]


class PoolingCalls(NamedTuple):
    """The calls of a script, each of which runs all its prompts.

    Attributes:
        served: the model.
        options: returns the options of so many prompts.
        run: runs jobs.
    """

    served: ServedModel
    options: Callable[[int], list[JobOptions]]
    run: Callable[[Sequence[PromptJob | PairJob]], list[Pooled]]

    def embed(
        self, prompts: PromptInput | Sequence[PromptInput], dimensions: int | None, normalize: bool | None
    ) -> list[EmbeddingRequestOutput]:
        """Make the vectors of prompts; see LLM.embed."""
        info = self.served.info
        check_embeds(self.served.names[0], info)
        size = check_dimensions(dimensions, info.embedding_size)
        if normalize is not None and not isinstance(normalize, bool):
            raise InvalidRequestError(
                f"normalize must be True, False or None, got {normalize!r}", "normalize"
            )
        normalizes = info.normalizes if normalize is None else normalize
        return [
            EmbeddingRequestOutput(
                each.request_id,
                EmbeddingOutput(finished_vector(each.values, size, normalizes=normalizes).tolist()),
                each.prompt_token_ids,
                num_cached_tokens=each.num_cached_tokens,
            )
            for each in self._run(list_prompts(prompts))
        ]

    def classify(self, prompts: PromptInput | Sequence[PromptInput]) -> list[ClassificationRequestOutput]:
        """Classify prompts; see LLM.classify."""
        info = self.served.info
        check_classifies(self.served.names[0], info)
        outputs = []
        for each in self._run(list_prompts(prompts)):
            probs = probabilities_of(each.values, info)
            made = ClassificationOutput(probs.tolist(), info.labels[int(probs.argmax())])
            outputs.append(
                ClassificationRequestOutput(
                    each.request_id,
                    made,
                    each.prompt_token_ids,
                    num_cached_tokens=each.num_cached_tokens,
                )
            )
        return outputs

    def encode(
        self, prompts: PromptInput | Sequence[PromptInput], task: PoolingTask | None
    ) -> list[PoolingRequestOutput]:
        """Make of prompts what the model makes; see LLM.encode."""
        if task not in (None, "embed", "classify", "token_embed"):
            raise InvalidRequestError(
                f"pooling_task must be 'embed', 'classify', 'token_embed' or None, got {task!r}",
                "pooling_task",
            )
        if task == "token_embed":
            return self._token_vectors(prompts)
        outputs: Sequence[EmbeddingRequestOutput | ClassificationRequestOutput]
        if task == "classify" or (task is None and self.served.info.labels):
            outputs = self.classify(prompts)
        else:
            outputs = self.embed(prompts, None, None)
        return [
            PoolingRequestOutput(
                each.request_id,
                PoolingOutput(np.array(_numbers(each), np.float32)),
                each.prompt_token_ids,
                num_cached_tokens=each.num_cached_tokens,
            )
            for each in outputs
        ]

    def _token_vectors(self, prompts: PromptInput | Sequence[PromptInput]) -> list[PoolingRequestOutput]:
        info = self.served.info
        check_embeds_tokens(self.served.names[0], info)
        return [
            PoolingRequestOutput(
                each.request_id,
                PoolingOutput(token_vectors(each.values, info.embedding_size, normalizes=False)),
                each.prompt_token_ids,
                num_cached_tokens=each.num_cached_tokens,
            )
            for each in self._run(list_prompts(prompts), of_tokens=True)
        ]

    def score(
        self, data_1: str | Sequence[str], data_2: str | Sequence[str], instruction: str | None = None
    ) -> list[ScoringRequestOutput]:
        """Score pairs of texts; see LLM.score."""
        first, second = _texts(data_1, "data_1"), _texts(data_2, "data_2")
        if len(first) not in (1, len(second)):
            raise InvalidRequestError(
                f"data_1 must be one text, or as many as data_2, got {len(first)} and {len(second)}", "data_1"
            )
        if instruction is not None and not isinstance(instruction, str):
            raise InvalidRequestError(
                f"instruction must be a text, got {type(instruction).__name__}", "instruction"
            )
        if not is_cross_encoder(self.served.names[0], self.served.info):
            if instruction is not None:
                raise InvalidRequestError("instruction: the model takes none", "instruction")
            return self._cosines(first, second)
        firsts = first * len(second) if len(first) == 1 else first
        pairs = zip(firsts, second, self.options(len(second)), strict=True)
        return [
            ScoringRequestOutput(
                each.request_id,
                ScoringOutput(score_of(each.values, self.served.info)),
                each.prompt_token_ids,
                num_cached_tokens=each.num_cached_tokens,
            )
            for each in self.run([PairJob(*pair, instruction) for pair in pairs])
        ]

    def rerank(
        self, query: str, documents: Sequence[str], top_n: int | None, instruction: str | None = None
    ) -> list[RankedDocument]:
        """Order documents by their scores; see LLM.rerank."""
        if not isinstance(query, str):
            raise InvalidRequestError(f"query must be a text, got {type(query).__name__}", "query")
        texts = _texts(documents, "documents")
        if top_n is not None and (type(top_n) is not int or top_n < 1):
            raise InvalidRequestError(f"top_n must be an integer of at least 1, got {top_n!r}", "top_n")
        scores = [each.outputs.score for each in self.score(query, texts, instruction)]
        # Equal ones stay in the order of the documents.
        order = sorted(range(len(texts)), key=lambda i: -scores[i])[: top_n or len(texts)]
        return [RankedDocument(i, scores[i], texts[i]) for i in order]

    def _cosines(self, first: list[str], second: list[str]) -> list[ScoringRequestOutput]:
        made = self._run([*first, *second])
        size = self.served.info.embedding_size
        found = cosines([each.values for each in made], len(first), size)
        return [
            ScoringRequestOutput(each.request_id, ScoringOutput(float(cosine)), [])
            for each, cosine in zip(made[len(first) :], found, strict=True)
        ]

    def _run(self, prompts: Sequence[PromptInput], *, of_tokens: bool = False) -> list[Pooled]:
        pairs = zip(prompts, self.options(len(prompts)), strict=True)
        return self.run([PromptJob(prompt, options, of_tokens) for prompt, options in pairs])


def _numbers(output: EmbeddingRequestOutput | ClassificationRequestOutput) -> list[float]:
    made = output.outputs
    return made.probs if isinstance(made, ClassificationOutput) else made.embedding


def _texts(given: str | Sequence[str], name: str) -> list[str]:
    texts = [given] if isinstance(given, str) else list_items(given, name, "a text or a list of texts")
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InvalidRequestError(f"{name} must be a text or a list of texts", name)
    return texts
