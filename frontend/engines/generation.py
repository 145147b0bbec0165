"""What a handler asks of the engines and what it gets back, independent of HTTP and sockets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from splitserve.engine_core.sampling_params import SamplingParams
from splitserve.frontend.text.grammar.context import NO_CONTEXT, GrammarContext

# A vector takes the computation of its prompt and no token.
POOLING_SAMPLING = SamplingParams(max_tokens=0, temperature=0.0, detokenize=False)


@dataclass(slots=True, frozen=True)
class GenerationRequest:
    """One prompt and the parameters of its n completions.

    Attributes:
        request_id: for logs and response ids; at most 128 characters.
        prompt_token_ids: at least one id, all within the vocabulary.
        sampling: validated; may have n > 1, stop strings, bad words, and no seed (a random one is used then).
        priority: lower runs first under the priority policy.
        tenant: namespace of the prefix cache, and the unit of fair sharing.
        cache_salt: restricts prefix-cache sharing further.
        timeout_s: 0 means never.
        queue_timeout_s: longest wait before it first runs; 0 means the engine's default.
        streams: deltas are wanted token by token rather than joined and about 50 ms late.
        model: identity of the model whose tokens the prompt has (ServedModel.identity); "" for whichever has
            the name.
        kept_ids: special tokens that are shown in the text although special tokens are skipped.
        grammar_context: of the structured outputs or the grammar of `sampling`.
        pools: the prompt's vector is wanted instead of text; `sampling` is POOLING_SAMPLING.
        continues: part of a client's request that has run already, see AddRequest.
        second_at: index of the first token of the second of two texts, see AddRequest.
        pools_tokens: with pools: the vector of each token is wanted.
        predicted_token_ids: what the output is expected to be like; changes no token of it.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    timeout_s: float = 0.0
    queue_timeout_s: float = 0.0
    streams: bool = True
    model: str = ""
    kept_ids: frozenset[int] = frozenset()
    grammar_context: GrammarContext = NO_CONTEXT
    pools: bool = False
    continues: bool = False
    second_at: int = 0
    pools_tokens: bool = False
    predicted_token_ids: Sequence[int] = ()


@dataclass(slots=True)
class TokenLogprob:
    """Logprobs of one token, of the top alternatives at its position, best first, and of requested ids."""

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]
    asked: list[tuple[int, float]] = field(default_factory=list)

    @property
    def others(self) -> list[tuple[int, float]]:
        """The alternatives, then the requested ids that are not among them; each id once."""
        return list((dict(self.top) | dict(self.asked)).items()) if self.asked else self.top


@dataclass(slots=True)
class OutputDelta:
    """What is new in one completion since its last delta.

    Attributes:
        index: which of the n completions, 0..n-1.
        text: new text; never holds the start of a stop string that may still match.
        token_ids: new token ids; their text may still be held back.
        logprobs: one entry per new token id if requested, else empty.
        prompt_logprobs: if requested, on the first delta only: one entry per prompt token, None for the
            first.
        finish_reason: "stop", "length", "repetition" or "abort" on the last delta. Errors are raised instead.
        stop_reason: the stop string or stop token id that matched.
        num_cached_tokens: prompt tokens found in the prefix cache; known from the first token on.
        queue_time_s: how long it waited on the engine before it first ran; known from the first token on.
        pooled: the prompt's vector, a float32 column, if that was asked for, on the last delta.
        num_draft_tokens, num_accepted_draft_tokens: tokens that the engine drafted, and those of them that
            are in the output, on the last delta.
        num_preemptions: how often the engine preempted it, on the last delta; None if a stop string ended it,
            which the engine has not seen.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: Sequence[TokenLogprob] = ()
    prompt_logprobs: Sequence[TokenLogprob | None] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    num_cached_tokens: int = 0
    queue_time_s: float = 0.0
    pooled: bytes = b""
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    num_preemptions: int | None = None
