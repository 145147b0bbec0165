"""The sampling parameters of one request and the ranges every entry point holds them to."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Annotated, Final, Literal

import msgspec

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.near_names import NearNamesMeta

MAX_N = 16
MAX_LOGPROBS = 20
# What a step of a beam search may ask an engine for: its width, and every token that could end an output.
MAX_STEP_LOGPROBS = 160
MAX_LENGTH_PENALTY = 10.0
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_BYTES = 256
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 300
MAX_ALLOWED_TOKEN_IDS = 10_000
MAX_LOGPROB_TOKEN_IDS = 128
MAX_BAD_WORDS = 128
MAX_BAD_WORD_BYTES = 256
# A bad word has up to two spellings; normalisers of tokenizers may make text longer than it was.
MAX_BAD_WORD_SEQUENCES = 2 * MAX_BAD_WORDS
MAX_BAD_WORD_TOKENS = 512
MAX_PATTERN_SIZE = 1024
MAX_PATTERN_COUNT = 1024
MAX_SEED = 2**64 - 1
# Of requests, either way; lower goes first.
MAX_PRIORITY = 2**31 - 1

# Beam search rates outputs by the model's own probabilities: what would change them, and what it may be.
_BEAM_SEARCH_NEEDS: Final[dict[str, tuple[object, ...]]] = {
    "temperature": (0, 1),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "stop": ((),),
    "logit_bias": ({},),
    "allowed_token_ids": (None,),
    "bad_words": ((),),
    "bad_word_token_ids": ((),),
    "repetition_detection": (None,),
}


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
        _int_in(f"{name}.max_pattern_size", self.max_pattern_size, 1, MAX_PATTERN_SIZE)
        _int_in(f"{name}.min_pattern_size", self.min_pattern_size, 1, self.max_pattern_size)
        _int_in(f"{name}.min_count", self.min_count, 2, MAX_PATTERN_COUNT)


# Items a message may bring, whatever validate() allows of them: checked before any of them is built, so that
# no message takes long to decode.
MAX_WIRE_ITEMS = 2**16
MAX_WIRE_SEQUENCES = 1024
Strings = Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_WIRE_ITEMS)]
TokenIds = Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_WIRE_ITEMS)]
TokenIdSequences = Annotated[
    tuple[Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_WIRE_SEQUENCES)], ...],
    msgspec.Meta(max_length=MAX_WIRE_SEQUENCES),
]


class SamplingParams(
    msgspec.Struct,
    metaclass=NearNamesMeta,
    frozen=True,
    omit_defaults=True,
    kw_only=True,
    forbid_unknown_fields=True,
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
        allowed_token_ids: the only ids that may be sampled, 1..10000 of them; EOS only if it is one. None
            allows all.
        bad_words: up to 128 strings of 1..256 bytes that the output may not come to; the frontend turns
            them into bad_word_token_ids.
        bad_word_token_ids: up to 256 sequences of 1..512 ids; the last id of a sequence is not sampled while
            the output ends with the ids before it.
        logprob_token_ids: up to 128 ids whose logprobs come beside those of every sampled token, after the
            top alternatives and in this order; needs logprobs, 0 is enough.
        repetition_detection: ends the request when its output repeats itself; None does not look.
        use_beam_search: search for the outputs that the model rates best; the frontend does it, in many
            requests of one token. The fields of sampling then keep values that change nothing.
        best_of: width of the search, n..16; None means n. Without a search it equals n.
        length_penalty: -10..10; an output's rate is the sum of its logprobs / length ** length_penalty.
            Without a search it is 1, and early_stopping False.
        early_stopping: when a search that has found best_of outputs ends: True at once, "never" once no
            running beam can come to a better rate, False once none would by its rate of now.
        detokenize: make text of the tokens; the frontend does it, and without it there are no stop strings.
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
    stop: Strings = ()
    stop_token_ids: TokenIds = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Annotated[dict[int, float], msgspec.Meta(max_length=MAX_WIRE_ITEMS)] = {}
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    allowed_token_ids: TokenIds | None = None
    bad_words: Strings = ()
    bad_word_token_ids: TokenIdSequences = ()
    logprob_token_ids: TokenIds = ()
    repetition_detection: RepetitionDetection | None = None
    use_beam_search: bool = False
    best_of: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    detokenize: bool = True

    @property
    def has_penalties(self) -> bool:
        """Whether any of the three penalties changes the logits."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    def validate(self, vocab_size: int | None = None, max_logprobs: int = MAX_LOGPROBS) -> None:
        """Check every field against its range.

        Args:
            vocab_size: number of token ids of the model; None leaves token ids unchecked above 0.
            max_logprobs: upper end of the range of logprobs and prompt_logprobs.

        Raises:
            InvalidRequestError: names the first field that is out of range and the range.
        """
        self._validate_numbers()
        for name, value, most in (
            ("logprobs", self.logprobs, max_logprobs),
            ("prompt_logprobs", self.prompt_logprobs, max_logprobs),
        ):
            if value is not None:
                _int_in(name, value, 0, most)
        self._validate_stops()
        self._validate_bad_words()
        self._validate_token_ids((vocab_size or 2**31) - 1)
        if self.logprob_token_ids and self.logprobs is None:
            raise InvalidRequestError("logprob_token_ids needs logprobs to be asked for", "logprob_token_ids")
        if self.repetition_detection is not None:
            self.repetition_detection.validate()
        self._validate_beam_search()

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

    def _validate_beam_search(self) -> None:
        _float_in("length_penalty", self.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        if not self.use_beam_search:
            if self.best_of not in (None, self.n):
                raise InvalidRequestError("best_of must equal n unless use_beam_search is set", "best_of")
            for name, neutral in (("length_penalty", 1), ("early_stopping", False)):
                if getattr(self, name) != neutral:
                    text = f"{name} must be {str(neutral).lower()} unless use_beam_search is set"
                    raise InvalidRequestError(text, name)
            return
        if self.best_of is not None:
            _int_in("best_of", self.best_of, self.n, MAX_N)
        if self.max_tokens is not None:
            _int_in("max_tokens", self.max_tokens, 1, 2**31 - 1)
        for name, values in _BEAM_SEARCH_NEEDS.items():
            if getattr(self, name) not in values:
                needed = " or ".join(str(value) for value in values if isinstance(value, int)) or "left out"
                raise InvalidRequestError(
                    f"{name} must be {needed} with use_beam_search", name, "unsupported_parameter"
                )

    def _validate_stops(self) -> None:
        _count_in("stop", self.stop, 0, MAX_STOP_STRINGS, "strings")
        _strings_in("stop", self.stop, MAX_STOP_STRING_BYTES)
        if self.stop and not self.detokenize:
            raise InvalidRequestError("stop needs detokenize: strings are looked for in the text", "stop")
        _count_in("stop_token_ids", self.stop_token_ids, 0, MAX_STOP_TOKEN_IDS, "ids")

    def _validate_bad_words(self) -> None:
        _count_in("bad_words", self.bad_words, 0, MAX_BAD_WORDS, "strings")
        _strings_in("bad_words", self.bad_words, MAX_BAD_WORD_BYTES)
        name = "bad_word_token_ids"
        _count_in(name, self.bad_word_token_ids, 0, MAX_BAD_WORD_SEQUENCES, "sequences")
        for i, sequence in enumerate(self.bad_word_token_ids):
            _count_in(f"{name}[{i}]", sequence, 1, MAX_BAD_WORD_TOKENS, "ids")

    def _validate_token_ids(self, last: int) -> None:
        _ids_in("stop_token_ids", self.stop_token_ids, last)
        _count_in("logit_bias", self.logit_bias, 0, MAX_LOGIT_BIAS, "entries")
        _ids_in("logit_bias", self.logit_bias, last)
        for token_id, bias in self.logit_bias.items():
            if not -100 <= bias <= 100:
                raise InvalidRequestError(
                    f"logit_bias of token {token_id} must be a number in [-100, 100], got {bias}",
                    "logit_bias",
                )
        if self.allowed_token_ids is not None:
            _count_in("allowed_token_ids", self.allowed_token_ids, 1, MAX_ALLOWED_TOKEN_IDS, "ids")
            _ids_in("allowed_token_ids", self.allowed_token_ids, last)
        _count_in("logprob_token_ids", self.logprob_token_ids, 0, MAX_LOGPROB_TOKEN_IDS, "ids")
        _ids_in("logprob_token_ids", self.logprob_token_ids, last)
        for sequence in self.bad_word_token_ids:
            _ids_in("bad_word_token_ids", sequence, last)


def _count_in(name: str, values: Collection[object], low: int, high: int, what: str) -> None:
    if not low <= len(values) <= high:
        bounds = f"at most {high}" if low == 0 else f"{low} to {high}"
        raise InvalidRequestError(f"{name} must hold {bounds} {what}, got {len(values)}", name)


def _strings_in(name: str, texts: tuple[str, ...], max_bytes: int) -> None:
    for i, text in enumerate(texts):
        size = len(text.encode("utf-8", "surrogatepass"))
        if not 1 <= size <= max_bytes:
            raise InvalidRequestError(
                f"{name}[{i}] must be 1 to {max_bytes} bytes long, got {size}", f"{name}[{i}]"
            )


def _ids_in(name: str, token_ids: Collection[int], last: int) -> None:
    # Up to 10,000 ids: the builtins look at them ten times as fast as a loop here would.
    if token_ids:
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id <= last:
                raise InvalidRequestError(f"{name}: token ids must be from 0 to {last}, got {token_id}", name)


def _int_in(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidRequestError(f"{name} must be an integer from {low} to {high}, got {value}", name)


def _float_in(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    # The comparison is written so that NaN fails it.
    inside = (low < value if open_low else low <= value) and value <= high and math.isfinite(value)
    if not inside:
        bracket = "(" if open_low else "["
        raise InvalidRequestError(f"{name} must be a number in {bracket}{low}, {high}], got {value}", name)
