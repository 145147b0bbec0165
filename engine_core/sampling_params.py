"""What a client asks of one prompt's outputs, and the ranges every entry point holds it to."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from splitserve.engine_core.errors import InvalidRequestError
from splitserve.engine_core.near_names import NearNamesMeta
from splitserve.engine_core.ranges import check_count, check_float, check_int, check_strings
from splitserve.engine_core.sequence_sampling import SequenceSampling
from splitserve.engine_core.structured_outputs import StructuredOutputs

MAX_N = 16
MAX_LOGPROBS = 20
MAX_LENGTH_PENALTY = 10.0
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_BYTES = 256
MAX_BAD_WORDS = 128
MAX_BAD_WORD_BYTES = 256
MAX_THINKING_TOKENS = 2**31 - 1

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
    "grammar": (None,),
    "structured_outputs": (None,),
    "thinking_token_budget": (None,),
}


class SamplingParams(
    SequenceSampling, metaclass=NearNamesMeta, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """How the outputs of one prompt are chosen, when they end, and what is shown of them.

    The fields of SequenceSampling (temperature, top_p, max_tokens, seed and so on), and those that only a
    frontend heeds; logprobs and prompt_logprobs are 0..20 unless an operator allows more.

    Attributes:
        n: completions per prompt, 1..16; each is a sequence of its own, with seeds seed, seed + 1 and so on.
        stop: strings that end the text.
        skip_special_tokens: leave special tokens out of the text.
        include_stop_str_in_output: keep the matched stop string in the text.
        bad_words: up to 128 strings of 1..256 bytes that the output may not come to; they become
            bad_word_token_ids.
        use_beam_search: search for the outputs that the model rates best, in many requests of one token. The
            fields of sampling then keep values that change nothing.
        best_of: width of the search, n..16; None means n. Without a search it equals n.
        length_penalty: -10..10; an output's rate is the sum of its logprobs / length ** length_penalty.
            Without a search it is 1, and early_stopping False.
        early_stopping: when a search that has found best_of outputs ends: True at once, "never" once no
            running beam can come to a better rate, False once none would by its rate of now.
        detokenize: make text of the tokens; without it there are no stop strings.
        structured_outputs: what the output has to be; it becomes the grammar.
        thinking_token_budget: most tokens of reasoning in the answer of a chat, 0..2**31 - 1, after which its
            end is forced; it becomes the grammar, too.
    """

    n: int = 1
    stop: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    bad_words: tuple[str, ...] = ()
    use_beam_search: bool = False
    best_of: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    detokenize: bool = True
    structured_outputs: StructuredOutputs | None = None
    thinking_token_budget: int | None = None

    def sequence(self, seed: int, prompt_logprobs: int | None) -> SequenceSampling:
        """Return what an engine is told of one of the n completions; words are translated by now."""
        shared = msgspec.convert(self, SequenceSampling, from_attributes=True)
        return msgspec.structs.replace(shared, seed=seed, prompt_logprobs=prompt_logprobs)

    def validate(self, vocab_size: int | None = None, max_logprobs: int = MAX_LOGPROBS) -> None:
        """Check every field against its range, as SequenceSampling.validate() does."""
        check_int("n", self.n, 1, MAX_N)
        super().validate(vocab_size, max_logprobs)
        check_count("stop", self.stop, 0, MAX_STOP_STRINGS, "strings")
        check_strings("stop", self.stop, MAX_STOP_STRING_BYTES)
        if self.stop and not self.detokenize:
            raise InvalidRequestError(
                "stop requires detokenize: stop strings are matched in the text", "stop"
            )
        check_count("bad_words", self.bad_words, 0, MAX_BAD_WORDS, "strings")
        check_strings("bad_words", self.bad_words, MAX_BAD_WORD_BYTES)
        if self.thinking_token_budget is not None:
            check_int("thinking_token_budget", self.thinking_token_budget, 0, MAX_THINKING_TOKENS)
        self._validate_beam_search()
        if self.structured_outputs is not None:
            self._validate_structured(self.structured_outputs)

    def _validate_structured(self, structured: StructuredOutputs) -> None:
        structured.validate()
        if self.grammar is not None:
            raise InvalidRequestError("grammar excludes structured_outputs", "grammar")

    def _validate_beam_search(self) -> None:
        check_float("length_penalty", self.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        if not self.use_beam_search:
            if self.best_of not in (None, self.n):
                raise InvalidRequestError("best_of must equal n unless use_beam_search is set", "best_of")
            for name, neutral in (("length_penalty", 1), ("early_stopping", False)):
                if getattr(self, name) != neutral:
                    text = f"{name} must be {str(neutral).lower()} unless use_beam_search is set"
                    raise InvalidRequestError(text, name)
            return
        if self.best_of is not None:
            check_int("best_of", self.best_of, self.n, MAX_N)
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, 1, 2**31 - 1)
        for name, values in _BEAM_SEARCH_NEEDS.items():
            if getattr(self, name) not in values:
                needed = " or ".join(str(value) for value in values if isinstance(value, int)) or "left out"
                raise InvalidRequestError(
                    f"{name} must be {needed} with use_beam_search", name, "unsupported_parameter"
                )
