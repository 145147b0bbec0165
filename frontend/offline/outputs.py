"""The types that the offline LLM class takes and returns, shaped as vLLM's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from splitserve.frontend.engines.generation import OutputDelta, TokenLogprob
from splitserve.frontend.metrics.request_metrics import RequestMetrics
from splitserve.frontend.text.tokenizer import Tokenizer


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt as token ids."""

    prompt_token_ids: list[int]


PromptInput = str | list[int] | TextPrompt | TokensPrompt


@dataclass(slots=True)
class Logprob:
    """Logprob of a token at some position, its 1-based rank there, and its text (None without detokenize)."""

    logprob: float
    rank: int | None
    decoded_token: str | None


PositionLogprobs = dict[int, Logprob]


@dataclass(slots=True)
class CompletionOutput:
    """One of the n completions of a prompt.

    Attributes:
        index: 0..n-1.
        text: generated text, without the stop string unless it was asked for.
        token_ids: generated token ids.
        cumulative_logprob: sum over the generated tokens; None unless logprobs were asked for.
        logprobs: per generated token, by token id: the token itself, the top alternatives, and the
            logprob_token_ids, whose rank is None unless they are among the others.
        finish_reason: "stop", "length", "repetition" or "abort".
        stop_reason: the stop string or stop token id that matched.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclass(slots=True)
class RequestOutput:
    """The result for one prompt.

    Attributes:
        prompt: as text; None when it came as token ids.
        prompt_logprobs: per prompt token, None for the first; None unless asked for.
        outputs: n completions in order of index.
        num_cached_tokens: prompt tokens found in the prefix cache, of the completion that found most.
        metrics: the times of its tokens; None unless LLM(enable_per_request_metrics=True), for n > 1 and for
            a beam search.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    finished: bool = True
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None


@dataclass(slots=True)
class EmbeddingOutput:
    """The vector of a prompt."""

    embedding: list[float]


@dataclass(slots=True)
class EmbeddingRequestOutput:
    """The result of LLM.embed for one prompt."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True
    num_cached_tokens: int = 0


@dataclass(slots=True)
class PoolingOutput:
    """What a model makes of a prompt: its vector or the probabilities of its labels, float32 [n], or the
    vectors of its tokens, [tokens, n].
    """

    data: npt.NDArray[np.float32]


@dataclass(slots=True)
class PoolingRequestOutput:
    """The result of LLM.encode for one prompt."""

    request_id: str
    outputs: PoolingOutput
    prompt_token_ids: list[int]
    finished: bool = True
    num_cached_tokens: int = 0


@dataclass(slots=True)
class ClassificationOutput:
    """The probability of each label, in the order of the model's; `label` is the most probable one."""

    probs: list[float]
    label: str

    @property
    def num_classes(self) -> int:
        """Number of labels."""
        return len(self.probs)


@dataclass(slots=True)
class ClassificationRequestOutput:
    """The result of LLM.classify for one prompt."""

    request_id: str
    outputs: ClassificationOutput
    prompt_token_ids: list[int]
    finished: bool = True
    num_cached_tokens: int = 0


@dataclass(slots=True)
class ScoringOutput:
    """How near two texts are to each other."""

    score: float


@dataclass(slots=True)
class ScoringRequestOutput:
    """The result of LLM.score for one pair; without prompt_token_ids where two vectors were compared."""

    request_id: str
    outputs: ScoringOutput
    prompt_token_ids: list[int]
    finished: bool = True
    num_cached_tokens: int = 0


@dataclass(slots=True)
class RankedDocument:
    """A document of LLM.rerank: its place among those given, its score, and its text."""

    index: int
    relevance_score: float
    document: str


def collect_outputs(
    output: RequestOutput, deltas: Iterable[OutputDelta], tokenizer: Tokenizer | None
) -> None:
    """Add deltas to the completions that they belong to.

    Args:
        output: to add to.
        deltas: what came.
        tokenizer: spells the tokens of logprobs; None leaves them without text.
    """
    for delta in deltas:
        completion = output.outputs[delta.index]
        completion.text += delta.text
        completion.token_ids += delta.token_ids
        completion.finish_reason, completion.stop_reason = delta.finish_reason, delta.stop_reason
        output.num_cached_tokens = max(output.num_cached_tokens, delta.num_cached_tokens)
        if delta.logprobs:
            _add_logprobs(completion, delta.logprobs, tokenizer)
        if delta.prompt_logprobs is not None:
            output.prompt_logprobs = [
                None if entry is None else _position(entry, tokenizer) for entry in delta.prompt_logprobs
            ]


def _add_logprobs(
    completion: CompletionOutput, entries: Sequence[TokenLogprob], tokenizer: Tokenizer | None
) -> None:
    if completion.logprobs is None:
        completion.logprobs, completion.cumulative_logprob = [], 0.0
    completion.logprobs += [_position(entry, tokenizer) for entry in entries]
    # One by one, so that the last bit does not depend on which tokens came together.
    for entry in entries:
        completion.cumulative_logprob = (completion.cumulative_logprob or 0.0) + entry.logprob


def _position(entry: TokenLogprob, tokenizer: Tokenizer | None) -> PositionLogprobs:
    def named(token_id: int, logprob: float, rank: int | None) -> Logprob:
        return Logprob(logprob, rank, tokenizer.token_text(token_id).text if tokenizer else None)

    position = {entry.token_id: named(entry.token_id, entry.logprob, entry.rank)}
    for rank, (token_id, logprob) in enumerate(entry.top, start=1):
        position.setdefault(token_id, named(token_id, logprob, rank))
    for token_id, logprob in entry.asked:
        position.setdefault(token_id, named(token_id, logprob, None))
    return position
