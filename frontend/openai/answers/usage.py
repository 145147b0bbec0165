"""Token counts of one HTTP request over all its prompts and completions."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from splitserve.frontend.engines.generation import OutputDelta


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """How many prompt tokens the prefix cache held."""

    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """How many tokens of the completions were reasoning, and how many drafted tokens are in them, or not."""

    reasoning_tokens: int | UnsetType = UNSET
    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET


class Usage(msgspec.Struct, frozen=True):
    """OpenAI's usage object; a prompt counts once however many completions it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class UsageCounter:
    """Adds up one request's tokens as its deltas pass.

    Attributes:
        completion_tokens: tokens of all completions so far.
        cached_tokens: cached prompt tokens; of n completions the least, which computed the rest for all.
        reasoning_tokens: those of completion_tokens that were reasoning; None if that is not told apart.
        draft_tokens, accepted_draft_tokens: tokens drafted, and those of them among completion_tokens.
    """

    __slots__ = (
        "_cached",
        "_n",
        "_prompt_tokens",
        "accepted_draft_tokens",
        "cached_tokens",
        "completion_tokens",
        "draft_tokens",
        "reasoning_tokens",
    )

    def __init__(self, prompt_lengths: list[int], n: int) -> None:
        """Start with nothing generated.

        Args:
            prompt_lengths: tokens of each prompt.
            n: completions per prompt.
        """
        self._prompt_tokens = sum(prompt_lengths)
        self._n = n
        # By choice; known from its first token on, or, with max_tokens 0, from its end.
        self._cached: list[int | None] = [None] * (len(prompt_lengths) * n)
        self.completion_tokens = self.cached_tokens = 0
        self.draft_tokens = self.accepted_draft_tokens = 0
        self.reasoning_tokens: int | None = None

    def add(self, choice_idx: int, delta: OutputDelta) -> None:
        """Count one delta."""
        if delta.token_ids or delta.finish_reason is not None:
            self.completion_tokens += len(delta.token_ids)
            self.draft_tokens += delta.num_draft_tokens
            self.accepted_draft_tokens += delta.num_accepted_draft_tokens
            if self._cached[choice_idx] != delta.num_cached_tokens:
                first = choice_idx - choice_idx % self._n
                self.cached_tokens -= self._least(first)
                self._cached[choice_idx] = delta.num_cached_tokens
                self.cached_tokens += self._least(first)

    def _least(self, first: int) -> int:
        return min((c for c in self._cached[first : first + self._n] if c is not None), default=0)

    def usage(self) -> Usage:
        """Return the counts so far."""
        total = self._prompt_tokens + self.completion_tokens
        cached = PromptTokensDetails(self.cached_tokens)
        return Usage(self._prompt_tokens, self.completion_tokens, total, cached, self._details())

    def _details(self) -> CompletionTokensDetails | UnsetType:
        reasoning = UNSET if self.reasoning_tokens is None else self.reasoning_tokens
        if self.draft_tokens:
            accepted = self.accepted_draft_tokens
            return CompletionTokensDetails(reasoning, accepted, self.draft_tokens - accepted)
        return UNSET if reasoning is UNSET else CompletionTokensDetails(reasoning)
