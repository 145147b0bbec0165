"""The sampling parameters of every row: dense columns for common ones, dicts for rare ones."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.worker.batch.bad_words import BadWords
from splitserve.worker.ops.columns import Array, SamplingColumns, allocate

if TYPE_CHECKING:
    from llguidance import LLMatcher


class Feature(enum.IntFlag):
    """What a row needs beyond temperature, top_k, top_p and min_p; steps without any skip this work."""

    LOGIT_BIAS = 1
    MIN_TOKENS = 2
    PENALTIES = 4
    LOGPROBS = 8
    PROMPT_LOGPROBS = 16
    ALLOWED_TOKEN_IDS = 32
    BAD_WORDS = 64
    LOGPROB_TOKEN_IDS = 128
    GRAMMAR = 256


_TINY = float(np.finfo(np.float32).tiny)

# Features that a row's mask is made of.
MASKED = Feature.ALLOWED_TOKEN_IDS | Feature.GRAMMAR
# Features that forbid tokens, and all features that change a row's logits before sampling.
MASKING = MASKED | Feature.BAD_WORDS | Feature.MIN_TOKENS
ADJUSTING = Feature.LOGIT_BIAS | Feature.PENALTIES | MASKING


class LogitBias(NamedTuple):
    """Biases of one row: distinct token ids int32 [n] and the biases added to their logits, float32 [n]."""

    token_ids: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]


@dataclass(slots=True)
class RowGrammar:
    """The grammar of one row; its matcher is made by the rank that samples, when it first does so."""

    text: str
    matcher: LLMatcher | None = None


class SamplingState:
    """Sampling parameters indexed by row; a freed row keeps stale values that nothing reads.

    Attributes:
        features: uint16 [max_num_seqs], Feature bits.
        columns: the parameters that every row has, [max_num_seqs] each.
        repetition, frequency, presence: float32 [max_num_seqs].
        num_logprobs, num_prompt_logprobs: int32 [max_num_seqs], requested number of top alternatives.
        first_end: int32 [max_num_seqs], sequence length from which a row with MIN_TOKENS may end.
        is_mask_new: bool [max_num_seqs], set when a new row brought its own allowed_token_ids.
        logit_bias, end_token_ids (masked below first_end), allowed_token_ids, bad_words, logprob_token_ids:
            of the rows that have them, ids in int32; at most max_num_seqs entries each.
        grammars: the same, see worker.grammar.row_grammars.
    """

    def __init__(self, features: npt.NDArray[np.uint16], vocab_size: int, eos_token_ids: list[int]) -> None:
        """Start with no rows.

        Args:
            features: the batch's column, zeroed.
            vocab_size: bounds every token id a row may name.
            eos_token_ids: end-of-sequence ids, masked by min_tokens.
        """
        max_num_seqs = len(features)
        self._vocab_size = vocab_size
        self._eos_token_ids = [token_id for token_id in eos_token_ids if 0 <= token_id < vocab_size]
        self.features = features
        self.columns = allocate(SamplingColumns[Array], max_num_seqs)
        self.repetition = np.ones(max_num_seqs, np.float32)
        self.frequency = np.zeros(max_num_seqs, np.float32)
        self.presence = np.zeros(max_num_seqs, np.float32)
        self.num_logprobs = np.zeros(max_num_seqs, np.int32)
        self.num_prompt_logprobs = np.zeros(max_num_seqs, np.int32)
        self.logit_bias: dict[int, LogitBias] = {}
        self.first_end = np.zeros(max_num_seqs, np.int32)
        self.end_token_ids: dict[int, npt.NDArray[np.int32]] = {}
        self.allowed_token_ids: dict[int, npt.NDArray[np.int32]] = {}
        self.is_mask_new = np.zeros(max_num_seqs, np.bool_)
        self.bad_words: dict[int, BadWords] = {}
        self.grammars: dict[int, RowGrammar] = {}
        self.logprob_token_ids: dict[int, npt.NDArray[np.int32]] = {}

    def add(self, row: int, params: SequenceSampling, num_prompt_tokens: int, num_tokens: int) -> None:
        """Store the parameters of a row that enters the batch with num_tokens tokens.

        Raises:
            InvalidRequestError: a token id is outside the vocabulary. The kernels index with these ids, so
                the worker does not rely on the engine's check.
        """
        self._check_token_ids(params)
        self._set_columns(row, params)
        features = self._add_rare(row, params)
        if params.has_penalties:
            features |= Feature.PENALTIES
        if params.logprobs is not None:
            features |= Feature.LOGPROBS
        # A row that enters with output tokens was preempted or moved here; its prompt logprobs are sent.
        if params.prompt_logprobs is not None and num_tokens == num_prompt_tokens:
            features |= Feature.PROMPT_LOGPROBS
        ends = self._end_token_ids(params)
        if ends and num_tokens < num_prompt_tokens + params.min_tokens:
            self.first_end[row] = num_prompt_tokens + params.min_tokens
            self.end_token_ids[row] = np.array(ends, np.int32)
            features |= Feature.MIN_TOKENS
        self.features[row] = features

    def _add_rare(self, row: int, params: SequenceSampling) -> Feature:
        """Store rare parameters in dicts; returns the features that they require."""
        features = Feature(0)
        if params.logit_bias:
            self.logit_bias[row] = _logit_bias(params)
            features |= Feature.LOGIT_BIAS
        if params.allowed_token_ids is not None:
            self.allowed_token_ids[row] = np.array(params.allowed_token_ids, np.int32)
            self.is_mask_new[row] = True
            features |= Feature.ALLOWED_TOKEN_IDS
        if params.bad_word_token_ids:
            self.bad_words[row] = BadWords.of(params.bad_word_token_ids)
            features |= Feature.BAD_WORDS
        if params.logprob_token_ids:
            self.logprob_token_ids[row] = np.array(params.logprob_token_ids, np.int32)
            features |= Feature.LOGPROB_TOKEN_IDS
        if params.grammar is not None:
            self.grammars[row] = RowGrammar(params.grammar)
            features |= Feature.GRAMMAR
        return features

    def discard(self, row: int) -> None:
        """Drop the parameters of a row that leaves the batch."""
        self.features[row] = 0
        self.logit_bias.pop(row, None)
        self.end_token_ids.pop(row, None)
        self.allowed_token_ids.pop(row, None)
        self.bad_words.pop(row, None)
        self.grammars.pop(row, None)
        self.logprob_token_ids.pop(row, None)

    def drop(self, row: int, feature: Feature) -> None:
        """Clear a feature that a row no longer needs: min_tokens reached, or prompt logprobs done."""
        self.features[row] &= ~np.uint16(feature)
        if feature is Feature.MIN_TOKENS:
            self.end_token_ids.pop(row, None)

    def rows_with(self, feature: Feature, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.intp]:
        """Return the ascending indices into `rows` of those that need a feature."""
        return np.flatnonzero(self.features[rows] & np.uint16(feature))

    def _set_columns(self, row: int, params: SequenceSampling) -> None:
        columns = self.columns
        columns.temperature[row] = params.temperature
        columns.top_k[row] = max(0, params.top_k)
        columns.top_p[row] = _above_zero(params.top_p)
        columns.min_p[row] = params.min_p
        columns.seed[row] = np.uint64(params.seed or 0).astype(np.int64)
        self.repetition[row] = _above_zero(params.repetition_penalty)
        self.frequency[row] = params.frequency_penalty
        self.presence[row] = params.presence_penalty
        self.num_logprobs[row] = params.logprobs or 0
        self.num_prompt_logprobs[row] = params.prompt_logprobs or 0

    def _end_token_ids(self, params: SequenceSampling) -> list[int]:
        eos = [] if params.ignore_eos else self._eos_token_ids
        return sorted({*eos, *params.stop_token_ids})

    def _check_token_ids(self, params: SequenceSampling) -> None:
        last = self._vocab_size - 1
        named = {
            "stop_token_ids": params.stop_token_ids,
            "logit_bias": params.logit_bias,
            "allowed_token_ids": params.allowed_token_ids or (),
            "bad_word_token_ids": [i for sequence in params.bad_word_token_ids for i in sequence],
            "logprob_token_ids": params.logprob_token_ids,
        }
        for name, token_ids in named.items():
            if token_ids and not (min(token_ids) >= 0 and max(token_ids) <= last):
                raise InvalidRequestError(f"{name} must hold token ids from 0 to {last}", name)
        if params.allowed_token_ids == () or () in params.bad_word_token_ids:
            raise InvalidRequestError("allowed_token_ids and bad words hold at least one id")


def _above_zero(value: float) -> float:
    """Keep a tiny positive double positive in float32: it would round to zero, which kernels reject."""
    return value if value > _TINY else _TINY


def _logit_bias(params: SequenceSampling) -> LogitBias:
    token_ids, values = params.logit_bias.keys(), params.logit_bias.values()
    return LogitBias(np.array([*token_ids], np.int32), np.array([*values], np.float32))
