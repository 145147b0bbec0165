"""How the tokens of one sequence are chosen and when it ends: what engines and workers are told."""

from __future__ import annotations

from typing import Annotated

import msgspec

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.ranges import check_count, check_float, check_int, check_token_ids

# What a step of a beam search may ask an engine for: its width, and every token that could end an output.
MAX_STEP_LOGPROBS = 160
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 300
MAX_ALLOWED_TOKEN_IDS = 10_000
MAX_LOGPROB_TOKEN_IDS = 128
# 128 bad words have up to two spellings each.
MAX_BAD_WORD_SEQUENCES = 256
# Normalisers of tokenizers may make text longer than it was.
MAX_BAD_WORD_TOKENS = 512
MAX_PATTERN_SIZE = 1024
MAX_PATTERN_COUNT = 1024
MAX_GRAMMAR_CHARS = 2**18
MAX_SEED = 2**64 - 1
# Of requests, either way; lower goes first.
MAX_PRIORITY = 2**31 - 1

# Items a message may bring, whatever validate() allows of them: checked before any of them is built, so that
# no message takes long to decode.
MAX_WIRE_ITEMS = 2**16
MAX_WIRE_SEQUENCES = 1024
TokenIds = Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_WIRE_ITEMS)]
TokenIdSequences = Annotated[
    tuple[Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_WIRE_SEQUENCES)], ...],
    msgspec.Meta(max_length=MAX_WIRE_SEQUENCES),
]


class RepetitionDetection(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """When an output counts as caught in a loop: its last tokens are one pattern, several times in a row.

    Attributes:
        max_pattern_size: longest pattern looked for, in tokens, 1..1024.
        min_pattern_size: shortest one, 1..max_pattern_size.
        min_count: how often in a row the pattern has to occur, 2..1024.
    """

    max_pattern_size: int
    min_pattern_size: int = 1
    min_count: int = 2

    def validate(self) -> None:
        """Check every field against its range.

        Raises:
            InvalidRequestError: names the first field that is out of range and the range.
        """
        name = "repetition_detection"
        check_int(f"{name}.max_pattern_size", self.max_pattern_size, 1, MAX_PATTERN_SIZE)
        check_int(f"{name}.min_pattern_size", self.min_pattern_size, 1, self.max_pattern_size)
        check_int(f"{name}.min_count", self.min_count, 2, MAX_PATTERN_COUNT)


class SequenceSampling(
    msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, forbid_unknown_fields=True
):
    """How the tokens of one sequence are chosen and when it ends.

    Attributes:
        temperature: 0 (greedy) to 2.
        top_p: (0, 1]; the smallest set of tokens with at least this probability mass is kept.
        top_k: 0 or -1 switches it off, otherwise the number of tokens kept.
        min_p: [0, 1]; tokens below min_p times the largest probability are dropped.
        presence_penalty: -2..2, subtracted once from every token already generated (OpenAI).
        frequency_penalty: -2..2, subtracted per occurrence among the generated tokens (OpenAI).
        repetition_penalty: (0, 10]; divides positive and multiplies negative logits of tokens seen in
            prompt or output (Keskar et al. 2019).
        seed: 0..2**64-1; None draws one (on the wire it counts as 0).
        max_tokens: upper bound of generated tokens; None means up to the model's context length.
        min_tokens: EOS and stop tokens are masked until this many tokens are generated.
        stop_token_ids: token ids that end the request.
        ignore_eos: go on after the model's EOS tokens.
        logprobs: None for none, otherwise the number of top alternatives beside the sampled token.
        prompt_logprobs: the same for prompt tokens.
        logit_bias: token id to bias in -100..100, added to the logits.
        allowed_token_ids: the only ids that may be sampled, 1..10000 of them; EOS only if it is one. None
            allows all.
        bad_word_token_ids: up to 256 sequences of 1..512 ids; the last id of a sequence is not sampled while
            the output ends with the ids before it.
        logprob_token_ids: up to 128 ids whose logprobs come beside those of every sampled token, after the
            top alternatives and in this order; needs logprobs, 0 is enough.
        repetition_detection: ends the request when its output repeats itself; None does not look.
        grammar: of the whole output, as llguidance reads it: Lark text, or JSON with a list of grammars; at
            most 262144 characters. None constrains nothing.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop_token_ids: TokenIds = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Annotated[dict[int, float], msgspec.Meta(max_length=MAX_WIRE_ITEMS)] = {}
    allowed_token_ids: TokenIds | None = None
    bad_word_token_ids: TokenIdSequences = ()
    logprob_token_ids: TokenIds = ()
    repetition_detection: RepetitionDetection | None = None
    grammar: str | None = None

    @property
    def has_penalties(self) -> bool:
        """Whether any of the three penalties changes the logits."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    def validate(self, vocab_size: int | None = None, max_logprobs: int = MAX_STEP_LOGPROBS) -> None:
        """Check every field against its range.

        Args:
            vocab_size: number of token ids of the model; None leaves token ids unchecked above 0.
            max_logprobs: upper end of the range of logprobs and prompt_logprobs.

        Raises:
            InvalidRequestError: names the first field that is out of range and the range.
        """
        self._validate_numbers(max_logprobs)
        check_count("stop_token_ids", self.stop_token_ids, 0, MAX_STOP_TOKEN_IDS, "ids")
        name = "bad_word_token_ids"
        check_count(name, self.bad_word_token_ids, 0, MAX_BAD_WORD_SEQUENCES, "sequences")
        for i, sequence in enumerate(self.bad_word_token_ids):
            check_count(f"{name}[{i}]", sequence, 1, MAX_BAD_WORD_TOKENS, "ids")
        self._validate_token_ids((vocab_size or 2**31) - 1)
        if self.logprob_token_ids and self.logprobs is None:
            raise InvalidRequestError("logprob_token_ids requires logprobs", "logprob_token_ids")
        if self.repetition_detection is not None:
            self.repetition_detection.validate()
        if self.grammar is not None and len(self.grammar) > MAX_GRAMMAR_CHARS:
            text = f"grammar must have at most {MAX_GRAMMAR_CHARS} characters, got {len(self.grammar)}"
            raise InvalidRequestError(text, "grammar")

    def _validate_numbers(self, max_logprobs: int) -> None:
        check_float("temperature", self.temperature, 0, 2)
        check_float("top_p", self.top_p, 0, 1, open_low=True)
        check_int("top_k", self.top_k, -1, 2**31 - 1)
        check_float("min_p", self.min_p, 0, 1)
        check_float("presence_penalty", self.presence_penalty, -2, 2)
        check_float("frequency_penalty", self.frequency_penalty, -2, 2)
        check_float("repetition_penalty", self.repetition_penalty, 0, 10, open_low=True)
        if self.seed is not None:
            check_int("seed", self.seed, 0, MAX_SEED)
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, 0, 2**31 - 1)
        check_int("min_tokens", self.min_tokens, 0, 2**31 - 1 if self.max_tokens is None else self.max_tokens)
        for name, value in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if value is not None:
                check_int(name, value, 0, max_logprobs)

    def _validate_token_ids(self, last: int) -> None:
        check_token_ids("stop_token_ids", self.stop_token_ids, last)
        check_count("logit_bias", self.logit_bias, 0, MAX_LOGIT_BIAS, "entries")
        check_token_ids("logit_bias", self.logit_bias, last)
        for token_id, bias in self.logit_bias.items():
            if not -100 <= bias <= 100:
                raise InvalidRequestError(
                    f"logit_bias of token {token_id} must be a number in [-100, 100], got {bias}",
                    "logit_bias",
                )
        if self.allowed_token_ids is not None:
            check_count("allowed_token_ids", self.allowed_token_ids, 1, MAX_ALLOWED_TOKEN_IDS, "ids")
            check_token_ids("allowed_token_ids", self.allowed_token_ids, last)
        check_count("logprob_token_ids", self.logprob_token_ids, 0, MAX_LOGPROB_TOKEN_IDS, "ids")
        check_token_ids("logprob_token_ids", self.logprob_token_ids, last)
        for sequence in self.bad_word_token_ids:
            check_token_ids("bad_word_token_ids", sequence, last)
