"""The sampling parameters of one request and the ranges every entry point holds them to."""

from __future__ import annotations

import math

import msgspec

from engine_core.errors import InvalidRequestError

MAX_N = 16
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_BYTES = 256
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 300
MAX_SEED = 2**64 - 1


class SamplingParams(
    msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, forbid_unknown_fields=True
):
    """How the tokens of one request are chosen and when it ends.

    Attributes:
        n: completions per prompt, 1..16; the frontend sends each as a request of its own.
        temperature: 0 (greedy) to 2.
        top_p: (0, 1]; the smallest set of tokens with at least this probability mass is kept.
        top_k: 0 or -1 switches it off, otherwise the number of tokens kept.
        min_p: [0, 1]; tokens below min_p times the largest probability are dropped.
        presence_penalty: -2..2, subtracted once from every token already generated (OpenAI).
        frequency_penalty: -2..2, subtracted per occurrence among the generated tokens (OpenAI).
        repetition_penalty: (0, 10]; divides positive and multiplies negative logits of tokens seen in
            prompt or output (Keskar et al. 2019).
        seed: 0..2**64-1; the frontend fills it in when the client did not.
        max_tokens: upper bound of generated tokens; None means up to the model's context length.
        min_tokens: EOS and stop tokens are masked until this many tokens are generated.
        stop: strings that end the text; matched by the frontend.
        stop_token_ids: token ids that end the request; matched by the engine.
        ignore_eos: go on after the model's EOS tokens.
        logprobs: None for none, otherwise the number of top alternatives (0..20) beside the sampled token.
        prompt_logprobs: the same for prompt tokens.
        logit_bias: token id to bias in -100..100, added to the logits.
        skip_special_tokens: leave special tokens out of the text.
        include_stop_str_in_output: keep the matched stop string in the text.
    """

    n: int = 1
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
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] = {}
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    @property
    def has_penalties(self) -> bool:
        """Whether any of the three penalties changes the logits."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    def validate(self, vocab_size: int | None = None) -> None:
        """Check every field against its range.

        Args:
            vocab_size: number of token ids of the model; None leaves token ids unchecked above 0.

        Raises:
            InvalidRequestError: names the first field that is out of range and the range.
        """
        self._validate_numbers()
        self._validate_stops()
        self._validate_token_ids(vocab_size)

    def _validate_numbers(self) -> None:
        _int_in("n", self.n, 1, MAX_N)
        _float_in("temperature", self.temperature, 0, 2)
        _float_in("top_p", self.top_p, 0, 1, open_low=True)
        _int_in("top_k", self.top_k, -1, 2**31 - 1)
        _float_in("min_p", self.min_p, 0, 1)
        _float_in("presence_penalty", self.presence_penalty, -2, 2)
        _float_in("frequency_penalty", self.frequency_penalty, -2, 2)
        _float_in("repetition_penalty", self.repetition_penalty, 0, 10, open_low=True)
        if self.seed is not None:
            _int_in("seed", self.seed, 0, MAX_SEED)
        if self.max_tokens is not None:
            _int_in("max_tokens", self.max_tokens, 0, 2**31 - 1)
        _int_in("min_tokens", self.min_tokens, 0, 2**31 - 1 if self.max_tokens is None else self.max_tokens)
        for name, value in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if value is not None:
                _int_in(name, value, 0, MAX_LOGPROBS)

    def _validate_stops(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError(
                f"stop must hold at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}", "stop"
            )
        for i, text in enumerate(self.stop):
            size = len(text.encode("utf-8", "surrogatepass"))
            if not 1 <= size <= MAX_STOP_STRING_BYTES:
                raise InvalidRequestError(
                    f"stop[{i}] must be 1 to {MAX_STOP_STRING_BYTES} bytes long, got {size}", f"stop[{i}]"
                )
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequestError(
                f"stop_token_ids must hold at most {MAX_STOP_TOKEN_IDS} ids, got {len(self.stop_token_ids)}",
                "stop_token_ids",
            )

    def _validate_token_ids(self, vocab_size: int | None) -> None:
        last = (vocab_size or 2**31) - 1
        for token_id in self.stop_token_ids:
            _int_in("stop_token_ids", token_id, 0, last)
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidRequestError(
                f"logit_bias must hold at most {MAX_LOGIT_BIAS} entries, got {len(self.logit_bias)}",
                "logit_bias",
            )
        for token_id, bias in self.logit_bias.items():
            _int_in("logit_bias", token_id, 0, last)
            _float_in("logit_bias", bias, -100, 100)


def _int_in(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidRequestError(f"{name} must be an integer from {low} to {high}, got {value}", name)


def _float_in(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    # The comparison is written so that NaN fails it.
    inside = (low < value if open_low else low <= value) and value <= high and math.isfinite(value)
    if not inside:
        bracket = "(" if open_low else "["
        raise InvalidRequestError(f"{name} must be a number in {bracket}{low}, {high}], got {value}", name)
